"""The data source and the dashboards, as files, fitted to a job."""
