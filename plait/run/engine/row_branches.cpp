// Ops with several edges in or out: their payloads are put together and taken apart.

#include "plait/run/engine/row_runner.h"

#include <ATen/ops/add.h>

#include <utility>

namespace plait {

bool RowRunner::take_input(const BoundOp& op, const std::vector<std::int64_t>& widths, const SliceData& data,
                           Payload& input) {
  const bool forward = op.kind == OpKind::kForward;
  const auto positions = [&](EdgeId edge) -> const std::vector<std::size_t>& {
    const EdgeTensors& tensors = context_.bound->edges[edge.index()];
    return forward ? tensors.at_consumer : tensors.at_producer;
  };
  const auto take = [&](const Source& source, EdgeId edge) {
    std::vector<std::int64_t> expected;
    for (const std::size_t position : positions(edge)) expected.push_back(widths[position]);
    Payload part;
    if (!take_payload(source, expected, data, part)) return false;
    input.resize(widths.size());
    for (std::size_t i = 0; i < part.size(); ++i) {
      at::Tensor& tensor = input[positions(edge)[i]];
      // Gradients of what went several ways, in the order of the edges. Others may hold them, so none is written into.
      tensor = tensor.defined() ? at::add(tensor, part[i]) : std::move(part[i]);
    }
    return true;
  };
  if (op.input.slot != kAbsent) {
    // Kernels of tests and benchmarks may have empty payloads.
    if (widths.empty() || positions(op.in_edge).size() == widths.size())
      return take_payload(op.input, widths, data, input);
    return take(op.input, op.in_edge);
  }
  for (std::int32_t at = op.inputs.begin; at < op.inputs.end; ++at) {
    const Branch& branch = row_.branches[static_cast<std::size_t>(at)];
    if (!take(branch.source, branch.edge)) return false;
  }
  return true;
}

void RowRunner::put_output(const BoundOp& op, Payload&& output) {
  const auto part_for = [&](EdgeId edge) {
    const EdgeTensors& tensors = context_.bound->edges[edge.index()];
    Payload part;
    if (output.empty()) return part;
    for (const std::size_t position : op.kind == OpKind::kForward ? tensors.at_producer : tensors.at_consumer)
      part.push_back(output[position]);
    return part;
  };
  if (op.output != kAbsent) {
    run_.payloads[static_cast<std::size_t>(op.output)] = part_for(op.out_edge);
  } else {
    for (std::int32_t at = op.outputs.begin; at < op.outputs.end; ++at) {
      const Branch& branch = row_.branches[static_cast<std::size_t>(at)];
      run_.payloads[static_cast<std::size_t>(branch.source.slot)] = part_for(branch.edge);
    }
  }
  output.clear();
}

}  // namespace plait
