#pragma once

#include "plait/base/result.h"
#include "plait/ir/program.h"

#include <string>
#include <string_view>
#include <variant>

namespace plait {

/// The text format: lines, `#` starts a comment, a header of keyed lines, then one block of tokens per rank.
///
///     plait 1 schedule                 # or: plait 1 program
///     name "1f1b"                      # optional, as are: mode train|forward, slices 1, head tied|untied, newline lf|crlf,
///                                      # recompute none|full|no-attention, exchanges one-way|swaps, folds 1,
///                                      # steps behind-norm|post-validated
///     ranks 2
///     microbatches 2
///     layers 2
///     stage 0 embed..post.0 @0         # parts first..last, @ its homes (0,3 or 0..7 or none)
///     stage 1 norm.1..head @1
///     edge 0>1                         # only where the edges are not the chain; `edges none` where there is none
///     group stage.0 parts embed..post.0 users 0 homes 0    # and `sharded`; a range leaves out attn, which owns no weights
///     group stage.1 parts norm.1..head users 1 homes 1     # without these lines: as make_layout derives
///     set 0 0..1                       # a rank set of collectives
///
///     rank 0:
///       0F0 0F1 . 0BW0 | 0BW1
///     rank 1:
///       1F0 1BW0 & 1F1 1BW1
///
/// Tokens: ops STAGE KIND MICROBATCH[.SLICE] with kind F, B, W, BW, R; `.` idle, `|` end of a turn, `&` pairs the next
/// two ops; and in rows with transfers
///
///     send(act,0>1,7)->1   recv(act,0>1,7)<-0   wait(send,act,0>1,7)->1
///     all_reduce(wgrad,embed)@0   broadcast(weight,stage.0)@0:root=1   wait(all_reduce,wgrad,embed)
///     free(weight,stage.0)   add(embed)   step(stage.0)   validate(norm)
///     batch(2)    # the next two transfers are posted together
///
/// Values: act and grad of an edge (PRODUCER>CONSUMER) and micro-batch; stash, wstash, kv, kvgrad of a stage and
/// micro-batch; weight and wgrad of a group; norm. A micro-batch may carry .SLICE. `#N` names an edge or a group by
/// index where its name would not be unique.
std::string print_text(const Schedule& schedule);
std::string print_text(const Program& program);

/// Reads what print_text writes: parse_text(print_text(x)) == x. `file_name` only heads the messages.
///
/// Numbers of ops and peers are not held against the sizes of the header (that is the verifier's work); references to
/// edges, groups and rank sets are.
///
/// \errors kInvalidSchedule, rule text.syntax, text.header or text.size: "FILE:LINE:COLUMN: expected ..., found ..."
/// \cost   linear in the text; a header cannot make it allocate more than the text's size justifies
Result<std::variant<Schedule, Program>> parse_text(std::string_view text, std::string_view file_name);

}  // namespace plait
