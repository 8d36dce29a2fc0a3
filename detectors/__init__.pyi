# The package's public names: read by type checkers, and by laggard.lazy, which loads them.
from laggard.detectors.analysis.slow_gpu_analysis import SlowGPUAnalysis as SlowGPUAnalysis
from laggard.detectors.detector import CollectorDetectorGroup as CollectorDetectorGroup
from laggard.detectors.detector import Detector as Detector
from laggard.detectors.economics.restart_cost import RestartCost as RestartCost
from laggard.detectors.errors import DetectorError as DetectorError
from laggard.detectors.errors import DeviceNameError as DeviceNameError
from laggard.detectors.errors import GroupsError as GroupsError
from laggard.detectors.errors import StateVersionError as StateVersionError
from laggard.detectors.judging.device_states import DeviceState as DeviceState
from laggard.detectors.sections import SectionDetector as SectionDetector
from laggard.detectors.slow_gpu import SlowGPUDetector as SlowGPUDetector
from laggard.detectors.slow_link import SlowLinkDetector as SlowLinkDetector
from laggard.detectors.verdict import Verdict as Verdict
