#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace plait {

enum class Align : std::uint8_t { kLeft, kRight };

/// Rows of text in aligned columns.
///
///     TextTable table({{"rank", Align::kRight}, {"op", Align::kLeft}});
///     table.add_row({"0", "F"});
///     table.print()      // "rank  op\n   0  F\n"
class TextTable {
 public:
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };

  explicit TextTable(std::vector<Column> columns);
  /// As many cells as there are columns.
  void add_row(std::vector<std::string> cells);
  /// Title line and rows; two blanks between columns, none at line ends.
  [[nodiscard]] std::string print() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace plait
