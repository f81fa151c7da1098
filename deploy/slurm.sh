#!/bin/bash
# Two nodes of two partitions each: sbatch deploy/slurm.sh. Ranks and node 0's address come from Slurm; a job that is
# put back into the queue resumes. Partition before: python main.py app=partition_data dataset_name=cora num_partitions=4
#SBATCH --job-name=retexo
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=4
#SBATCH --time=02:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

cd "${RETEXO_HOME:-$SLURM_SUBMIT_DIR}"
srun --kill-on-bad-exit=1 .venv/bin/python main.py --config-name node_classification_gcn app=train dataset_name=cora \
    num_partitions=4 checkpoint.every=20 resume=auto "hydra.run.dir=outputs/$SLURM_JOB_ID" "$@"
