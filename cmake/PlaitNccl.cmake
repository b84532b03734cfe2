# Headers of NCCL and of the CUDA runtime, which nccl.h includes: those that scripts/setup cuda fetches, or a toolkit's. Only
# types are taken from them; the libraries are loaded at run time. Without them the build has no NCCL, and several processes
# with GPUs are refused with nccl.missing.
set(plait_nccl_places
  ${PLAIT_TORCH_ROOT}/nvidia/nccl ${PLAIT_TORCH_ROOT}/nvidia/cu13 $ENV{CUDA_HOME} /usr/local/cuda)
find_path(PLAIT_NCCL_INCLUDE nccl.h PATHS ${plait_nccl_places} PATH_SUFFIXES include)
find_path(PLAIT_CUDA_INCLUDE cuda_runtime.h PATHS ${plait_nccl_places} PATH_SUFFIXES include)
if(PLAIT_NCCL_INCLUDE AND PLAIT_CUDA_INCLUDE)
  message(STATUS "NCCL: ${PLAIT_NCCL_INCLUDE}/nccl.h, several processes may have GPUs")
else()
  message(STATUS "NCCL: nccl.h or cuda_runtime.h is missing, so several processes with GPUs will be refused; scripts/setup cuda "
                 "fetches both, or set PLAIT_NCCL_INCLUDE and PLAIT_CUDA_INCLUDE")
  set(PLAIT_NCCL_INCLUDE "")
endif()
