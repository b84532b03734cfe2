#define PLAIT_ISA avx2
#include "plait/run/model/kernels/cpu/loops_impl.h"
