#!/bin/bash
# Configuration of `enroot start --conf`, where Pyxis is not installed; enroot sources it. The container keeps its own
# environment (its PATH and libraries are right for it) and gets what belongs to the step: Slurm, MPI, NCCL, this suite.
environ() {
    env | grep -E '^(SLURM|SLURMD|PMI|PMI2|PMIX|OMPI|PRTE|UCX|NCCL|RCCL|FI|GLOO|TORCH|OMP|CUDA|NVIDIA|MELLANOX|ROCR|HIP|HSA|CLUSTERMAX|CMX)_' || :
    env | grep -E '^(USE_LIBUV|MASTER_ADDR|MASTER_PORT)=' || :
}

# Instead of the image's entry point, which may print or change what runs.
rc() {
    exec "$@"
}
