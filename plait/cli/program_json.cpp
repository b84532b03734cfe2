#include "plait/cli/program_json.h"

#include <nlohmann/json.hpp>

namespace plait {
namespace {

using Json = nlohmann::ordered_json;

Json ids(const std::vector<RankId>& ranks) {
  Json list = Json::array();
  for (const RankId rank : ranks) list.push_back(rank.value());
  return list;
}

/// Coordinates of a value under the names that its kind gives them.
void put_value(Json& json, const Layout& layout, const Value& value) {
  json["value"] = to_string(value.kind());
  if (value.kind() == ValueKind::kNorm) return;
  if (value.is_group()) {
    json["group"] = layout.groups[value.group().index()].name;
    return;
  }
  if (value.is_edge()) {
    const Edge& edge = layout.edges[value.edge().index()];
    json["edge"] = {edge.producer.value(), edge.consumer.value()};
  } else {
    json["stage"] = value.stage().value();
  }
  json["microbatch"] = value.microbatch().value();
  json["slice"] = value.slice().value();
}

struct InstrJson {
  const Layout& layout;
  Json& json;
  void operator()(const Op& op) const {
    json["kind"] = to_string(op.kind);
    json["stage"] = op.stage.value();
    json["microbatch"] = op.microbatch.value();
    json["slice"] = op.slice.value();
  }
  void operator()(const Pair&) const {}
  void operator()(const Idle&) const {}
  void operator()(const Turn&) const {}
  void operator()(const Batch& batch) const { json["count"] = batch.count; }
  void transfer(const Value& value, RankId peer) const {
    put_value(json, layout, value);
    json["peer"] = peer.value();
  }
  void operator()(const Send& send) const { transfer(send.value, send.peer); }
  void operator()(const Recv& recv) const { transfer(recv.value, recv.peer); }
  void operator()(const WaitSend& wait) const { transfer(wait.value, wait.peer); }
  void operator()(const Collective& collective) const {
    put_value(json, layout, collective.value);
    json["ranks"] = ids(layout.rank_sets[collective.ranks.index()]);
    if (collective.kind == CollectiveKind::kBroadcast || collective.kind == CollectiveKind::kReduce)
      json["root"] = collective.root.value();
  }
  void operator()(const WaitCollective& wait) const {
    json["of"] = to_string(wait.kind);
    put_value(json, layout, wait.value);
  }
  void operator()(const Free& freed) const { put_value(json, layout, freed.value); }
  void operator()(const Add& add) const { json["group"] = layout.groups[add.group.index()].name; }
  void operator()(const Step& step) const { json["group"] = layout.groups[step.group.index()].name; }
  void operator()(const Validate&) const { put_value(json, layout, Value::norm()); }
};

Json part_names(const Layout& layout, const std::vector<int>& parts) {
  Json list = Json::array();
  for (const int part : parts) list.push_back(to_string(part_at(layout.num_layers, part)));
  return list;
}

}  // namespace

std::string program_as_json(const Layout& layout, const std::vector<Row>& rows, const SimResult* times) {
  Json json = {{"name", layout.name},
               {"mode", layout.mode == Mode::kTrain ? "train" : "forward"},
               {"ranks", layout.num_ranks},
               {"microbatches", layout.num_microbatches},
               {"slices", layout.num_slices},
               {"layers", layout.num_layers},
               {"head", layout.tying == HeadTying::kTied ? "tied" : "untied"}};
  for (const Stage& stage : layout.stages)
    json["stages"].push_back({{"first_part", to_string(part_at(layout.num_layers, stage.parts.begin))},
                              {"last_part", to_string(part_at(layout.num_layers, stage.parts.end - 1))},
                              {"homes", ids(stage.homes)}});
  json["edges"] = Json::array();
  for (const Edge& edge : layout.edges) json["edges"].push_back({edge.producer.value(), edge.consumer.value()});
  json["groups"] = Json::array();
  for (const ParamGroup& group : layout.groups)
    json["groups"].push_back({{"name", group.name},
                              {"parts", part_names(layout, group.parts)},
                              {"homes", ids(group.homes)},
                              {"sharded", group.residency == Residency::kSharded}});
  json["rows"] = Json::array();
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    Json row = Json::array();
    for (std::size_t at = 0; at < rows[rank].size(); ++at) {
      const Instr& instr = rows[rank][at];
      Json entry = {{"kind", kind_name(instr)}};
      std::visit(InstrJson{layout, entry}, instr);
      if (times != nullptr) {
        const auto unit = static_cast<double>(times->ticks_per_unit);
        entry["start"] = static_cast<double>(times->times[rank][at].start) / unit;
        entry["end"] = static_cast<double>(times->times[rank][at].end) / unit;
      }
      row.push_back(std::move(entry));
    }
    json["rows"].push_back(std::move(row));
  }
  return json.dump() + "\n";
}

}  // namespace plait
