"""An environment without the variables of any launcher, for jobs that tests start themselves."""
import os

VARIABLES = ("DDP_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "OMPI_", "PMI", "SLURM_", "TORCHELASTIC_", "JOB_COMPLETION_INDEX")
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(VARIABLES)}
