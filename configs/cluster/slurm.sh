#!/usr/bin/env bash
# closecall on several nodes: sbatch configs/cluster/slurm.sh experiment.yaml
# The nodes share the folder of the config, the data, the model and the output.
#SBATCH --job-name=closecall
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=4
#SBATCH --requeue
set -euo pipefail
config=${1:?"usage: sbatch slurm.sh CONFIG"}
processes=${SLURM_GPUS_ON_NODE:-1}
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export OMP_NUM_THREADS=$((SLURM_CPUS_PER_TASK / processes))
# A requeued job goes on where it was: finished stages, blocks of vectors and training steps are kept.
srun torchrun --nnodes "$SLURM_NNODES" --nproc_per_node "$processes" --rdzv_id "$SLURM_JOB_ID" \
  --rdzv_backend c10d --rdzv_endpoint "$head:29500" -m closecall.cli run "$config"
