"""Values as bytes, without pickle."""
