#include "elastic/parts.h"

#include <algorithm>
#include <utility>

#include "util/error.h"

namespace libddp {

void JobParts::add_context(Context& context) {
    context.committed();
    const bool shards = context.model().options.reducer.shard;
    if (kept_ || (shards && !contexts_.empty()))
        fail_call(DDP_ERROR_UNSUPPORTED,
                  "the job has another context; one with DDP_CONTEXT_SHARD is the only one of its "
                  "elastic job");
    for (const auto* list : {&context.model().table.params(), &context.model().table.buffers()})
        for (const Param& param : *list)
            if (param.data && !is_cpu(param.device))
                fail_call(DDP_ERROR_UNSUPPORTED, "'", param.name, "' is on ",
                          device_name(param.device),
                          "; an elastic job has its state in memory of the CPU");
    if (shards) kept_ = std::make_unique<KeptShards>(context);
    contexts_.push_back(&context);
    numbers_.push_back(context.number().value());
}

void JobParts::add_averager(Averager& averager) {
    if (std::find(contexts_.begin(), contexts_.end(), &averager.context()) == contexts_.end())
        fail_call(DDP_ERROR_INVALID_STATE,
                  "the averager's context is not in the job; add that first");
    if (kept_)
        fail_call(DDP_ERROR_UNSUPPORTED,
                  "the context has DDP_CONTEXT_SHARD, and its ranks do not train apart");
    if (averager.periods() > 1)
        fail_call(DDP_ERROR_UNSUPPORTED, "the averager has ", averager.periods(),
                  " periods; in an elastic job, whose ranks change, it has one");
    if (!averager.has_outer())
        fail_call(DDP_ERROR_INVALID_STATE,
                  "the averager has no outer optimizer, so there is nothing to go back to when a "
                  "rank is lost; call ddp_averager_set_outer. DDP_OUTER_SGD with learning_rate 1 "
                  "and momentum 0 is the plain average");
    if (averager_)
        fail_call(DDP_ERROR_UNSUPPORTED, "the job has an averager; it has no more than one");
    averager_ = &averager;
}

void JobParts::add_state(StateBlock block) {
    for (const StateBlock& other : own_blocks_)
        if (other.name == block.name)
            fail_call(DDP_ERROR_ALREADY_EXISTS, "there is a state '", block.name, "'");
    own_blocks_.push_back(std::move(block));
}

void JobParts::find_state() {
    state_.clear();
    buffers_.clear();
    for (const Context* context : contexts_) {
        const ParamTable& table = context->model().table;
        for (const auto& [list, blocks] :
             {std::pair(&table.params(), &state_), {&table.buffers(), &buffers_}})
            for (const Param& param : *list)
                if (param.data && !param.ignored)
                    blocks->push_back(
                        {param.name, static_cast<std::byte*>(param.data), param.bytes});
    }
    state_.insert(state_.end(), own_blocks_.begin(), own_blocks_.end());
}

// Contexts of one shape would be taken for each other if a rank added them in another order.
std::string JobParts::order_of_creation() const {
    if (numbers_.size() < 2) return "";
    std::string text;
    for (const std::int32_t number : numbers_)
        text += str(text.empty() ? "" : ", ",
                    std::count_if(numbers_.begin(), numbers_.end(),
                                  [number](auto other) { return other < number; }));
    return str(", which it created in the order ", text);
}

void JobParts::compare(Group& group) const {
    std::vector<std::string> lines;
    for (const auto* blocks : {&state_, &buffers_})
        for (const StateBlock& block : *blocks)
            lines.push_back(str("'", block.name, "' of ", block.bytes, " bytes"));
    if (averager_) lines.push_back(str("an averager ", averager_->rhythm()));
    agree_on_model(
        group, {},
        str(contexts_.size(), " contexts", order_of_creation(), ", ", lines.size(), " states"),
        lines);
}

void JobParts::require_between_steps() const {
    for (const Context* context : contexts_) context->require_between_steps();
}

void JobParts::set_group(const std::shared_ptr<Group>& group) const {
    for (Context* context : contexts_) context->set_group(group);
}

void JobParts::clear_gradients() const {
    for (Context* context : contexts_) context->committed().clear_gradients();
}

bool JobParts::in_window() const {
    return std::any_of(contexts_.begin(), contexts_.end(), [](const Context* context) {
        return context->committed().parts().gradients.any_waits();
    });
}

bool JobParts::come_early() const {
    return std::any_of(contexts_.begin(), contexts_.end(), [](const Context* context) {
        return context->committed().results().come_early();
    });
}

}  // namespace libddp
