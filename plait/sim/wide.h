#pragma once

namespace plait {

/// Room for the product of two 64-bit numbers.
__extension__ using Int128 = __int128;

}  // namespace plait
