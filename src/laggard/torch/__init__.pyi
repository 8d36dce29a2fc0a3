# The package's public names: read by type checkers, and by laggard.lazy, which loads them.
from laggard.torch.kept_group import init_process_group as init_process_group
from laggard.torch.resuming import Resumed as Resumed
from laggard.torch.resuming import resume as resume
from laggard.torch.storage import CheckpointReader as CheckpointReader
from laggard.torch.storage import CheckpointWriter as CheckpointWriter
