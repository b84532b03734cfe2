#include "plait/base/table.h"

#include "plait/base/check.h"

#include <algorithm>
#include <utility>

namespace plait {

TextTable::TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {}

void TextTable::add_row(std::vector<std::string> cells) {
  PLAIT_CHECK(cells.size() == columns_.size(), "{} cells for {} columns", cells.size(), columns_.size());
  rows_.push_back(std::move(cells));
}

std::string TextTable::print() const {
  std::vector<std::size_t> widths;
  for (const Column& column : columns_) widths.push_back(column.title.size());
  for (const auto& row : rows_)
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());

  std::string text;
  const auto print_row = [&](const auto& cell_of) {
    std::string line;
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      const std::string& cell = cell_of(c);
      const std::string padding(widths[c] - cell.size(), ' ');
      line += c == 0 ? "" : "  ";
      line += columns_[c].align == Align::kRight ? padding + cell : cell + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  print_row([&](std::size_t c) -> const std::string& { return columns_[c].title; });
  for (const auto& row : rows_) print_row([&](std::size_t c) -> const std::string& { return row[c]; });
  return text;
}

}  // namespace plait
