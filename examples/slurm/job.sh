#!/bin/bash
# A training job on two nodes with two ranks each: sbatch job.sh PROGRAM [ARGUMENTS...]
#
# The folder in which sbatch runs must be one that all nodes share: the job's secret is there while it runs.
#SBATCH --job-name=libddp
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --requeue
set -euo pipefail

# Ranks prove to each other that they know the secret. Nobody else can join the job, or read what they exchange.
export DDP_SECRET_FILE=$PWD/job-$SLURM_JOB_ID.secret
trap 'rm -f "$DDP_SECRET_FILE"' EXIT  # it stays if the node is lost
(umask 077; head -c 32 /dev/urandom | base64 -w0 > "$DDP_SECRET_FILE")

# If one rank fails, the others report it and end by themselves. With --kill-on-bad-exit=1 srun would end them before.
srun --kill-on-bad-exit=0 "$@"
