#!/bin/bash
# sbatch examples/cluster/slurm.sh: one node trains and generates, the others judge.
# Every node needs the same checkout of forge with its .venv, on a shared file system or at the same path.
#SBATCH --job-name=forge
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
set -euo pipefail

EXPERIMENT=${EXPERIMENT:-examples/cluster/train-and-judge.toml}
FORGE=${FORGE:-$SLURM_SUBMIT_DIR}
PORT=6379
cd "$FORGE"
export PATH="$FORGE/.venv/bin:$PATH"
export RAY_worker_niceness=0  # else Ray's workers, and so judges, yield to everything else

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
others=$((SLURM_JOB_NUM_NODES - 1))
address=$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address | awk '{print $1}')

# Ray must not give away the head's GPUs, which forge places by [devices].
srun --nodes=1 --ntasks=1 --nodelist="$head" --overlap \
  ray start --head --node-ip-address="$address" --port=$PORT --num-gpus=0 --block &
sleep 15
srun --nodes=$others --ntasks=$others --exclude="$head" --overlap \
  ray start --address="$address:$PORT" --labels="role=judge" --block &

# The run waits for nobody: judges start on nodes as they join.
srun --nodes=1 --ntasks=1 --nodelist="$head" --overlap \
  bash -c "until ray status --address=$address:$PORT >/dev/null 2>&1; do sleep 2; done
           sleep 20
           forge cluster check $EXPERIMENT && forge run $EXPERIMENT"
