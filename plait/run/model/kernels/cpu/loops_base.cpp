#define PLAIT_ISA base
#include "plait/run/model/kernels/cpu/loops_impl.h"
