#pragma once

#include "plait/schedules/schedule_info.h"

#include <string>
#include <vector>

namespace plait {

/// An order as a paper or a data sheet prints it: tests/data/schedules/*.txt.
///
/// Header lines give the sizes; then one row per rank, `r0: F0 F1 B0 ...`. A cell is a kind (F, B, W, BW), a micro-batch and
/// marks: lower case or a prime for the second chunk, `.1` a slice, `d` and `u` the streams down and up the ranks. `B` is the
/// full backward under `backward full`. `F3d&BW1u` is a pair. A point is an idle cell, a bar separates phases, `...` ends a row
/// that goes on.
struct PrintedOrder {
  std::string schedule;
  ScheduleShape shape;
  struct PrintedRow {
    int rank = 0;
    std::vector<Op> ops;
    std::vector<int> cells;  ///< of each op, idle cells counted
    std::vector<int> pairs;  ///< index of each first op of a pair
    bool goes_on = false;
  };
  std::vector<PrintedRow> rows;
};

/// Fails the running test and returns what it has when the file is missing or malformed.
PrintedOrder read_printed_order(const std::string& file_name);

/// The ops of a row, without anything else.
std::vector<Op> ops_of(const Row& row);

/// Index among the ops of each first op of a pair.
std::vector<int> pairs_of(const Row& row);

/// "0F0 3B1.2 ...": for readable failures.
std::string to_text(const std::vector<Op>& ops);

}  // namespace plait
