#define PLAIT_ISA avx512bf16
#include "plait/run/model/kernels/cpu/loops_impl.h"
