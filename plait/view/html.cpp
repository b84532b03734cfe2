#include "plait/view/html.h"

#include "plait/view/page.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <iterator>
#include <map>

namespace plait {
namespace {

/// A JSON string that may stand in a script element.
std::string quoted(const std::string& text) {
  std::string json = nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  for (std::size_t at = json.find('<'); at != std::string::npos; at = json.find('<', at))
    json.replace(at, 1, "\\u003c");
  return json;
}

class Writer {
 public:
  template <class... Args>
  void write(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
  }
  /// A list of lists of pairs, flattened.
  template <class Lists>
  void write_pairs(const Lists& lists) {
    write("[");
    for (std::size_t i = 0; i < lists.size(); ++i) {
      write("{}[", i == 0 ? "" : ",");
      bool first = true;
      for (const auto& [a, b] : lists[i]) {
        write("{}{},{}", first ? "" : ",", a, b);
        first = false;
      }
      write("]");
    }
    write("]");
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

/// "names": those of all spans, each once; "spans": per rank start, end, kind and index of the name.
void write_spans(Writer& page, const Timeline& t) {
  std::map<std::string, std::size_t> index;
  for (const Span& span : t.spans) index.try_emplace(span.name, index.size());
  std::vector<const std::string*> names(index.size());
  for (const auto& [name, at] : index) names[at] = &name;
  page.write("\"names\":[");
  for (std::size_t i = 0; i < names.size(); ++i) page.write("{}{}", i == 0 ? "" : ",", quoted(*names[i]));
  page.write("],\n\"spans\":[");
  auto next = t.spans.begin();
  for (int rank = 0; rank < t.num_ranks; ++rank) {
    page.write("{}[", rank == 0 ? "" : ",");
    bool first = true;
    for (; next != t.spans.end() && next->rank == rank; ++next) {
      page.write("{}{},{},{},{}", first ? "" : ",", next->start, next->end, static_cast<int>(next->kind),
                 index[next->name]);
      first = false;
    }
    page.write("]");
  }
  page.write("],\n");
}

}  // namespace

std::string draw_html(const std::vector<Timeline>& timelines) {
  Writer page;
  page.write("{}[", kPageHead);
  for (std::size_t i = 0; i < timelines.size(); ++i) {
    const Timeline& t = timelines[i];
    page.write(
        "{}\n{{\"title\":{},\"measured\":{},\"scale\":{},\"unit\":{},\"ranks\":{},\"slices\":{},\"makespan\":{},"
        "\"bubble\":{},\"memoryUnit\":{},\n\"bars\":[",
        i == 0 ? "" : ",", quoted(t.title), t.origin == Origin::kMeasured, t.ticks_per_unit, quoted(t.unit),
        t.num_ranks, t.num_slices, t.makespan, t.bubble_ratio, quoted(t.memory_unit));
    for (std::size_t b = 0; b < t.bars.size(); ++b) {
      const Bar& bar = t.bars[b];
      page.write("{}{},{},{},{},{},{},{}", b == 0 ? "" : ",", bar.rank, bar.start, bar.end, static_cast<int>(bar.kind),
                 bar.stage, bar.microbatch, bar.slice);
    }
    page.write("],\n");
    write_spans(page, t);
    page.write("\"arrows\":[");
    for (std::size_t a = 0; a < t.arrows.size(); ++a)
      page.write("{}{},{},{},{}", a == 0 ? "" : ",", t.arrows[a].from, t.arrows[a].to, t.arrows[a].sent,
                 t.arrows[a].arrived);
    page.write("],\n\"waits\":");
    page.write_pairs(t.waits);
    page.write(",\n\"memory\":");
    page.write_pairs(t.memory);
    page.write("}}");
  }
  page.write("\n]{}", kPageScript);
  return page.take();
}

}  // namespace plait
