# Imported targets for the C++ libraries inside the PyPI package torch, installed without its dependencies by
# scripts/setup. find_package(Torch) is not used: it demands a CUDA toolkit.
set(PLAIT_TORCH_VERSION 2.15.0)
set(PLAIT_TORCH_ROOT "" CACHE PATH "Folder that holds torch/ (default: the user's cache, where scripts/setup puts it)")
if(NOT PLAIT_TORCH_ROOT)
  if(DEFINED ENV{XDG_CACHE_HOME})
    set(plait_cache $ENV{XDG_CACHE_HOME})
  else()
    set(plait_cache $ENV{HOME}/.cache)
  endif()
  set(PLAIT_TORCH_ROOT ${plait_cache}/plait/torch-${PLAIT_TORCH_VERSION})
endif()
set(plait_torch_lib ${PLAIT_TORCH_ROOT}/torch/lib)
if(NOT EXISTS ${plait_torch_lib}/libtorch_cpu.so)
  message(FATAL_ERROR "libtorch ${PLAIT_TORCH_VERSION} is not in ${PLAIT_TORCH_ROOT}. Run scripts/setup, or use the preset "
                      "`core`, which builds everything but run/ without it.")
endif()
if(PLAIT_WITH_CUDA AND NOT EXISTS ${plait_torch_lib}/libtorch_cuda.so)
  message(FATAL_ERROR "libtorch in ${PLAIT_TORCH_ROOT} has no libtorch_cuda.so, so it computes on the CPU only. Run scripts/setup "
                      "cuda, give another PLAIT_TORCH_ROOT, or configure with -DPLAIT_WITH_CUDA=OFF.")
endif()

add_library(plait_c10 SHARED IMPORTED)
set_target_properties(plait_c10 PROPERTIES IMPORTED_LOCATION ${plait_torch_lib}/libc10.so)
add_library(plait_torch_cpu SHARED IMPORTED)
set_target_properties(plait_torch_cpu PROPERTIES IMPORTED_LOCATION ${plait_torch_lib}/libtorch_cpu.so)

add_library(plait_torch INTERFACE)
# After the system's own: torch/include brings another fmt along.
target_compile_options(plait_torch INTERFACE "SHELL:-idirafter ${PLAIT_TORCH_ROOT}/torch/include")
target_link_libraries(plait_torch INTERFACE plait_torch_cpu plait_c10)
target_link_options(plait_torch INTERFACE -Wl,--allow-shlib-undefined -Wl,-rpath,${plait_torch_lib})
