#!/bin/bash
#SBATCH --nodes=3 --exclusive
#SBATCH --no-kill
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --time=12:00:00
#SBATCH --signal=B:TERM@60

exec laggard --nodes=2 --resilient --exhaust-resources --state-dir="$SLURM_SUBMIT_DIR/state" train.py
