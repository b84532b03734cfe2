#define PLAIT_ISA avx512
#include "plait/run/model/kernels/cpu/loops_impl.h"
