// A device of PyTorch (PrivateUse1) whose memory and streams are those of the fake device
// (tests/support/fake_device): no processor can touch its memory, and its streams are late.
//
// An operation does not run in the call. A dry run on zeros of the CPU tells the shapes of its
// results; what is enqueued on the current stream runs the CPU's kernel on the second mapping of
// the memory. Like PyTorch's allocator for CUDA, this one gives memory back in the order of the
// stream that it was allocated for, and of those of record_stream. An operation that would make the
// host wait (item, nonzero, a copy to the CPU) counts as a wait.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "support/fake_device/fake_device.h"

// These are functions of Python, which has loaded this library.
extern "C" {
void Py_IncRef(void* object);
void Py_DecRef(void* object);
int Py_IsInitialized(void);
int PyGILState_Ensure(void);
void PyGILState_Release(int state);
}

namespace {

constexpr auto kPlayed = c10::DeviceType::PrivateUse1;
constexpr int kDevices = 2;

std::atomic<long> waits{0};  // of the host for a stream

// STREAMS. The id is the handle of the fake device; 0 is the default stream.

thread_local c10::StreamId current[kDevices] = {0, 0};
thread_local int current_device = 0;

void* handle_of(c10::StreamId id) {
    return reinterpret_cast<void*>(id);
}

void enqueue(int device, std::function<void()> work) {
    fake::launch(device, handle_of(current[device]), std::move(work));
}

void wait_for(int device, c10::StreamId stream) {
    ++waits;
    fake::wait(device, handle_of(stream));
}

// A gate that the test opens.
struct Point {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;

    void set() {
        const std::lock_guard lock(mutex);
        done = true;
        changed.notify_all();
    }
    void wait() {
        std::unique_lock lock(mutex);
        changed.wait(lock, [this] { return done; });
    }
};
using PointPtr = std::shared_ptr<Point>;

using EventPtr = std::shared_ptr<fake::Event>;

EventPtr recorded(int device, c10::StreamId stream) {
    return fake::record(device, handle_of(stream));
}

void block(const EventPtr& event, int device, c10::StreamId stream) {
    fake::wait_for(event, device, handle_of(stream));
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
    using Device = c10::Device;
    using Stream = c10::Stream;
    Guard() = default;
    explicit Guard(c10::DeviceType) {}
    c10::DeviceType type() const override { return kPlayed; }
    Device exchangeDevice(Device device) const override {
        const Device before = getDevice();
        setDevice(device);
        return before;
    }
    Device getDevice() const override {
        return Device(kPlayed, static_cast<c10::DeviceIndex>(current_device));
    }
    void setDevice(Device device) const override { uncheckedSetDevice(device); }
    void uncheckedSetDevice(Device device) const noexcept override {
        if (device.index() >= 0) current_device = device.index();
    }
    int index(Device device) const { return device.index() < 0 ? current_device : device.index(); }
    Stream stream(int device, c10::StreamId id) const {
        return Stream(Stream::UNSAFE, Device(kPlayed, static_cast<c10::DeviceIndex>(device)), id);
    }
    Stream getStream(Device device) const override {
        return stream(index(device), current[index(device)]);
    }
    Stream getDefaultStream(Device device) const override { return stream(index(device), 0); }
    Stream getNewStream(Device device, int = 0) const override {
        const int i = index(device);
        return stream(i, reinterpret_cast<c10::StreamId>(fake::make_stream(i)));
    }
    Stream getStreamFromGlobalPool(Device device, bool) const override {
        return getNewStream(device);
    }
    Stream exchangeStream(Stream next) const override {
        const int i = next.device_index();
        const Stream before = stream(i, current[i]);
        current[i] = next.id();
        return before;
    }
    void* getStreamNativeHandle(const Stream stream) const override {
        return handle_of(stream.id());
    }
    void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
        delete static_cast<EventPtr*>(event);
    }
    void record(void** event, const Stream& stream, const c10::DeviceIndex,
                const c10::EventFlag) const override {
        if (!*event) *event = new EventPtr;
        *static_cast<EventPtr*>(*event) = recorded(stream.device_index(), stream.id());
    }
    void block(void* event, const Stream& stream) const override {
        if (event) ::block(*static_cast<EventPtr*>(event), stream.device_index(), stream.id());
    }
    bool queryEvent(void* event) const override {
        return !event || fake::done(*static_cast<EventPtr*>(event));
    }
    c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
    bool queryStream(const Stream&) const override { return false; }
    void synchronizeStream(const Stream& stream) const override {
        wait_for(stream.device_index(), stream.id());
    }
    void synchronizeEvent(void* event) const override {
        ++waits;
        if (event) fake::wait(*static_cast<EventPtr*>(event));
    }
    void synchronizeDevice(const c10::DeviceIndex) const override {
        ++waits;
        fake::settle();
    }
    void recordDataPtrOnStream(const c10::DataPtr& data, const Stream& stream) const override;
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// Memory of the host that copies read when their stream comes to them, and not before the call
// returns.
struct PinnedAllocator final : c10::Allocator {
    static std::mutex& mutex() {
        static auto& made = *new std::mutex;
        return made;
    }
    static std::map<const char*, std::size_t>& all() {
        static auto& made = *new std::map<const char*, std::size_t>;
        return made;
    }
    static bool has(const void* memory) {
        const std::lock_guard lock(mutex());
        const auto* place = static_cast<const char*>(memory);
        auto next = all().upper_bound(place);
        return next != all().begin() && place < std::prev(next)->first + std::prev(next)->second;
    }
    static void release(void* memory) {
        {
            const std::lock_guard lock(mutex());
            all().erase(static_cast<char*>(memory));
        }
        std::free(memory);
    }
    c10::DataPtr allocate(size_t bytes) override {
        auto* memory = static_cast<char*>(std::aligned_alloc(64, (bytes + 64) / 64 * 64));
        const std::lock_guard lock(mutex());
        all()[memory] = bytes;
        return {memory, memory, &release, c10::DeviceType::CPU};
    }
    c10::DeleterFnPtr raw_deleter() const override { return &release; }
    void copy_data(void* to, const void* from, std::size_t bytes) const override {
        std::memcpy(to, from, bytes);
    }
};
PinnedAllocator pinned_allocator;

struct Hooks final : at::PrivateUse1HooksInterface {
    at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
    bool isPinnedPtr(const void* memory) const override { return PinnedAllocator::has(memory); }
    bool isBuilt() const override { return true; }
    bool isAvailable() const override { return true; }
    bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
    c10::DeviceIndex deviceCount() const override { return kDevices; }
    void setCurrentDevice(c10::DeviceIndex device) const override { current_device = device; }
    c10::DeviceIndex getCurrentDevice() const override {
        return static_cast<c10::DeviceIndex>(current_device);
    }
    c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
        const auto before = getCurrentDevice();
        if (device >= 0) current_device = device;
        return before;
    }
    c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
        return exchangeDevice(device);
    }
};

[[maybe_unused]] const bool hooked = [] {
    at::RegisterPrivateUse1HooksInterface(new Hooks);
    return true;
}();

// MEMORY

struct Block {
    void* memory;
    int device;
    c10::StreamId stream;
    std::mutex mutex;
    std::set<c10::StreamId> others;  // of record_stream
    bool of_graph = false;           // allocated while the stream was captured: the graph frees it
};

void release(void* context) {
    const std::unique_ptr<Block> block(static_cast<Block*>(context));
    if (block->of_graph) return;
    for (const auto other : block->others)
        ::block(recorded(block->device, other), block->device, block->stream);
    const auto free = [memory = block->memory] { fake::release(memory); };
    // a graph writes there in each launch
    if (!fake::keep_in_capture(block->device, handle_of(block->stream), free))
        fake::launch(block->device, handle_of(block->stream), free);
}

struct Allocator final : c10::Allocator {
    c10::DataPtr allocate(size_t bytes) override {
        const int device = current_device;
        const c10::Device place(kPlayed, static_cast<c10::DeviceIndex>(device));
        if (bytes == 0) return {nullptr, nullptr, &release_none, place};
        void* memory = fake::allocate(device, bytes);
        enqueue(device, [memory, bytes] { std::memset(fake::alias(memory), 0xff, bytes); });
        auto* block = new Block{memory, device, current[device], {}, {}};
        block->of_graph = fake::keep_in_capture(device, handle_of(current[device]),
                                                [memory] { fake::release(memory); });
        return {memory, block, &release, place};
    }
    static void release_none(void*) {}
    c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
    void copy_data(void*, const void*, std::size_t) const override {
        TORCH_CHECK(false, "played: copy_data");
    }
};

Allocator allocator;
[[maybe_unused]] const bool allocating = [] {
    c10::SetAllocator(kPlayed, &allocator);
    return true;
}();

void keep_for(const c10::DataPtr& data, const c10::Stream& stream) {
    if (data.get_deleter() != &release || !data.get_context()) return;
    auto* block = static_cast<Block*>(data.get_context());
    const std::lock_guard lock(block->mutex);
    if (block->stream != stream.id()) block->others.insert(stream.id());
}

void Guard::recordDataPtrOnStream(const c10::DataPtr& data, const Stream& stream) const {
    keep_for(data, stream);
}

// TENSORS

const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

bool is_played(const at::Tensor& tensor) {
    return tensor.defined() && tensor.device().type() == kPlayed;
}

void enter(std::optional<c10::Device> device) {
    if (device && device->index() >= 0) current_device = device->index();
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
    const int before = current_device;
    enter(device);
    at::Tensor made =
        at::detail::empty_generic(size, &allocator, kKeys, c10::dtype_or_default(dtype), format);
    current_device = before;
    return made;
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
    const int before = current_device;
    enter(device);
    at::Tensor made = at::detail::empty_strided_generic(size, stride, &allocator, kKeys,
                                                        c10::dtype_or_default(dtype));
    current_device = before;
    return made;
}

at::Tensor like(const at::Tensor& cpu, int device) {
    return empty_strided(cpu.sizes(), cpu.strides(), cpu.scalar_type(), {},
                         at::Device(kPlayed, static_cast<c10::DeviceIndex>(device)), {});
}

// Where a tensor of the device lies, without a hold on its memory.
struct Place {
    void* memory;
    std::vector<int64_t> sizes, strides;
    at::ScalarType dtype;
    bool conj, neg;

    explicit Place(const at::Tensor& tensor)
        : memory(tensor.numel() ? tensor.data_ptr() : nullptr),
          sizes(tensor.sizes().vec()),
          strides(tensor.strides().vec()),
          dtype(tensor.scalar_type()),
          conj(tensor.is_conj()),
          neg(tensor.is_neg()) {}
    // On the thread of a stream.
    at::Tensor tensor() const {
        if (!memory) return at::empty_strided(sizes, strides, dtype);
        auto seen = at::from_blob(fake::alias(memory), sizes, strides, at::TensorOptions(dtype));
        if (conj) seen._set_conj(true);
        if (neg) seen._set_neg(true);
        return seen;
    }
    at::Tensor zeros() const {
        at::Tensor made = at::empty_strided(sizes, strides, dtype).zero_();
        if (conj) made._set_conj(true);
        if (neg) made._set_neg(true);
        return made;
    }
};

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
    if (is_played(to)) {
        const int device = to.device().index();
        if (is_played(from)) {
            const int other = from.device().index();
            if (other != device) block(recorded(other, current[other]), device, current[device]);
            enqueue(device, [source = Place(from), target = Place(to)] {
                target.tensor().copy_(source.tensor());
            });
            if (other != device) block(recorded(device, current[device]), other, current[other]);
            return to;
        }
        // pageable memory is read before the call returns
        const bool late = non_blocking && PinnedAllocator::has(from.data_ptr());
        enqueue(device, [source = late ? from.detach() : from.clone(), target = Place(to)] {
            target.tensor().copy_(source);
        });
        return to;
    }
    const int device = from.device().index();
    // the thread of the stream is no place for autograd, which knows of the copy
    enqueue(device, [source = Place(from), target = to.detach()] {
        at::Tensor(target).copy_(source.tensor());
    });
    if (!non_blocking) wait_for(device, current[device]);
    return to;
}

const at::Tensor& resize_played(const at::Tensor& self, at::IntArrayRef size,
                                std::optional<at::MemoryFormat>) {
    auto* impl = self.unsafeGetTensorImpl();
    if (self.sizes() == size) return self;
    const int before = current_device;
    current_device = self.device().index();
    impl->set_sizes_contiguous(size);
    const size_t bytes = (impl->numel() + impl->storage_offset()) * self.element_size();
    if (bytes > self.storage().nbytes()) {
        auto* storage = self.storage().unsafeGetStorageImpl();
        storage->set_data_ptr(allocator.allocate(bytes));  // what was there is not kept
        storage->set_nbytes(bytes);
    }
    current_device = before;
    return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size,
                        at::IntArrayRef stride) {
    self.unsafeGetTensorImpl()->set_storage_keep_dtype(source);
    self.unsafeGetTensorImpl()->set_storage_offset(offset);
    std::vector<int64_t> strides = stride.vec();
    if (strides.size() != size.size()) {
        strides.assign(size.size(), 1);
        for (int i = static_cast<int>(size.size()) - 2; i >= 0; --i)
            strides[i] = strides[i + 1] * size[i + 1];
    }
    self.unsafeGetTensorImpl()->set_sizes_and_strides(size, strides);
    return self;
}

void record_stream(at::Tensor& self, at::Stream stream) {
    keep_for(self.storage().data_ptr(), stream);
}

// ALL OTHER OPERATIONS

struct BelowAutograd {
    c10::impl::ExcludeDispatchKeyGuard guard{c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                                             c10::autocast_dispatch_keyset};
};

void find(const c10::IValue& value, std::vector<Place>& places, int& device, bool& by_mask) {
    const auto one = [&](const at::Tensor& tensor) {
        if (!is_played(tensor)) return;
        TORCH_CHECK(device < 0 || device == tensor.device().index(),
                    "played: tensors on different devices");
        device = tensor.device().index();
        places.emplace_back(tensor);
    };
    if (value.isTensor()) return one(value.toTensor());
    if (value.isTensorList())
        for (const at::Tensor& tensor : value.toTensorVector()) one(tensor);
    if (value.isOptionalTensorList())
        for (const auto& each : value.toOptionalTensorVector())
            if (each) {
                one(*each);
                by_mask = by_mask || (each->defined() && (each->scalar_type() == at::kBool ||
                                                          each->scalar_type() == at::kByte));
            }
}

bool has_shape_of_data(const std::string& name) {
    static const std::set<std::string> names = {
        "aten::nonzero",    "aten::masked_select",      "aten::_unique2",
        "aten::unique_dim", "aten::unique_consecutive", "aten::bincount",
        "aten::_unique",    "aten::repeat_interleave"};
    return names.count(name) != 0;
}

// A call with Places instead of tensors of the device.
struct Call {
    c10::OperatorHandle op;
    std::vector<Place> places;
    // How to make each value again. Values that hold no tensor of the device are kept.
    struct Value {
        enum { kPlain, kOne, kList, kOptionalList } kind = kPlain;
        c10::IValue plain;
        std::vector<int> which;  // in places; -1: `other`; -2: none
        std::vector<at::Tensor> other;
    };
    std::vector<Value> values;
    std::vector<bool> fresh;  // of each argument: an out=, which the CPU's kernel may resize

    Call(const c10::OperatorHandle& op_, c10::ArrayRef<c10::IValue> arguments) : op(op_) {
        for (size_t i = 0; i < arguments.size(); ++i) {
            const auto& argument = op.schema().arguments()[i];
            const auto* alias = argument.alias_info();
            fresh.push_back(argument.kwarg_only() && alias && alias->isWrite() &&
                            arguments[i].isTensor());
            values.push_back(take(arguments[i]));
        }
    }
    bool has_fresh() const { return std::find(fresh.begin(), fresh.end(), true) != fresh.end(); }

    Value take(const c10::IValue& value) {
        Value taken;
        const auto one = [&](const at::Tensor& tensor) {
            if (is_played(tensor)) {
                taken.which.push_back(static_cast<int>(places.size()));
                places.emplace_back(tensor);
                taken.other.emplace_back();
            } else {
                taken.which.push_back(-1);
                taken.other.push_back(tensor.defined() ? tensor.detach().clone() : tensor);
            }
        };
        if (value.isTensor()) {
            taken.kind = Value::kOne;
            one(value.toTensor());
        } else if (value.isTensorList()) {
            taken.kind = Value::kList;
            for (const at::Tensor& tensor : value.toTensorVector()) one(tensor);
        } else if (value.isOptionalTensorList()) {
            taken.kind = Value::kOptionalList;
            for (const auto& each : value.toOptionalTensorVector()) {
                if (each) {
                    one(*each);
                } else {
                    taken.which.push_back(-2);
                    taken.other.emplace_back();
                }
            }
        } else {
            taken.plain = value.isDevice() ? c10::IValue(c10::Device(c10::DeviceType::CPU)) : value;
        }
        return taken;
    }

    // Runs the CPU's kernel. dry: on zeros.
    torch::jit::Stack run(bool dry) const {
        const BelowAutograd below;
        torch::jit::Stack stack;
        std::vector<at::Tensor> tensors;
        for (const Place& place : places) tensors.push_back(dry ? place.zeros() : place.tensor());
        for (size_t number = 0; number < values.size(); ++number) {
            const Value& value = values[number];
            if (fresh[number]) {
                stack.emplace_back(at::empty({0}, places[value.which[0]].dtype));
                continue;
            }
            const auto at = [&](size_t i) {
                return value.which[i] >= 0               ? tensors[value.which[i]]
                       : dry && value.other[i].defined() ? value.other[i].clone()
                                                         : value.other[i];
            };
            if (value.kind == Value::kPlain) {
                stack.push_back(value.plain);
            } else if (value.kind == Value::kOne) {
                stack.emplace_back(at(0));
            } else if (value.kind == Value::kList) {
                c10::List<at::Tensor> list;
                for (size_t i = 0; i < value.which.size(); ++i) list.push_back(at(i));
                stack.emplace_back(list);
            } else {
                c10::List<std::optional<at::Tensor>> list;
                for (size_t i = 0; i < value.which.size(); ++i)
                    list.push_back(value.which[i] == -2 ? std::nullopt
                                                        : std::optional<at::Tensor>(at(i)));
                stack.emplace_back(list);
            }
        }
        op.callBoxed(&stack);
        return stack;
    }
};

// PyTorch calls these where a device has no convolution of its own.
c10::OperatorHandle in_place_of_overrideable(const c10::OperatorHandle& op,
                                             torch::jit::Stack* stack) {
    auto& dispatcher = c10::Dispatcher::singleton();
    if (op.schema().name() == "aten::convolution_overrideable")
        return dispatcher.findSchemaOrThrow("aten::convolution", "");
    if (op.schema().name() != "aten::convolution_backward_overrideable") return op;
    constexpr size_t kArguments = 10, kBiasSizes = 3;
    const int64_t outputs = (*stack)[stack->size() - kArguments + 2].toTensor().size(0);
    stack->insert(stack->end() - kArguments + kBiasSizes, std::vector<int64_t>{outputs});
    return dispatcher.findSchemaOrThrow("aten::convolution_backward", "");
}

void fallback(const c10::OperatorHandle& called, torch::jit::Stack* stack) {
    const c10::OperatorHandle op = in_place_of_overrideable(called, stack);
    const auto& schema = op.schema();
    const size_t count = schema.arguments().size();
    const auto arguments = torch::jit::last(*stack, count).vec();
    int device = -1;
    bool by_mask = false;
    {
        std::vector<Place> found;
        for (const auto& value : arguments) {
            find(value, found, device, by_mask);
            if (value.isDevice() && device < 0 && value.toDevice().index() >= 0)
                device = value.toDevice().index();
        }
    }
    if (device < 0) device = current_device;
    auto call = std::make_shared<Call>(op, arguments);

    bool sync = by_mask || has_shape_of_data(schema.name());
    bool written = !schema.returns().empty();  // all results are arguments
    for (const auto& result : schema.returns()) {
        const bool is_tensor = result.type()->kind() == c10::TypeKind::TensorType;
        sync = sync || !is_tensor;
        const auto* alias = result.alias_info();
        written = written && alias && alias->isWrite();
        TORCH_CHECK(!alias || alias->isWrite(), "played: a view without a kernel: ", schema.name());
    }
    torch::jit::Stack results;
    if (schema.returns().empty()) {
        enqueue(device, [call] { call->run(false); });
    } else if (call->has_fresh()) {
        TORCH_CHECK(!sync, "played: ", schema.name());
        std::vector<Place> targets;
        for (const auto& value : call->run(true)) {
            const size_t i = results.size() +
                             std::find(call->fresh.begin(), call->fresh.end(), true) -
                             call->fresh.begin();
            const at::Tensor& out = arguments[i].toTensor();
            resize_played(out, value.toTensor().sizes(), {});
            targets.emplace_back(out);
            results.emplace_back(out);
        }
        enqueue(device, [call, targets] {
            const auto made = call->run(false);
            const BelowAutograd below;
            for (size_t i = 0; i < targets.size(); ++i)
                targets[i].tensor().copy_(made[i].toTensor());
        });
    } else if (written) {
        for (const auto& result : schema.returns())
            for (size_t i = 0; i < count; ++i) {
                const auto* alias = schema.arguments()[i].alias_info();
                if (alias && *alias == *result.alias_info()) {
                    results.push_back(arguments[i]);
                    break;
                }
            }
        TORCH_CHECK(results.size() == schema.returns().size(), "played: ", schema.name());
        enqueue(device, [call] { call->run(false); });
    } else if (sync) {
        wait_for(device, current[device]);
        for (const auto& value : call->run(false)) {
            TORCH_CHECK(!value.isTensorList(), "played: a list of results: ", schema.name());
            if (value.isTensor() && value.toTensor().defined()) {
                const at::Tensor made = like(value.toTensor(), device);
                copy_from(value.toTensor(), made, true);
                results.emplace_back(made);
            } else {
                results.push_back(value);
            }
        }
    } else {
        std::vector<std::optional<Place>> targets;
        for (const auto& value : call->run(true)) {
            if (!value.toTensor().defined()) {
                targets.emplace_back();
                results.push_back(value);
                continue;
            }
            const at::Tensor made = like(value.toTensor(), device);
            targets.emplace_back(Place(made));
            results.emplace_back(made);
        }
        enqueue(device, [call, targets] {
            const auto made = call->run(false);
            const BelowAutograd below;
            for (size_t i = 0; i < targets.size(); ++i)
                if (targets[i]) targets[i]->tensor().copy_(made[i].toTensor());
        });
    }
    torch::jit::drop(*stack, count);
    for (auto& result : results) stack->push_back(std::move(result));
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
    m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
    m.impl("empty.memory_format", &empty);
    m.impl("empty_strided", &empty_strided);
    m.impl("as_strided", &at::native::as_strided_tensorimpl);
    m.impl("view", &at::native::view);
    m.impl("_reshape_alias", &at::native::_reshape_alias);
    m.impl("unfold", &at::native::unfold);
    m.impl("view_as_real", &at::native::view_as_real);
    m.impl("resize_", &resize_played);
    m.impl("set_.source_Storage_storage_offset", &set_storage);
    m.impl("_copy_from", &copy_from);
    m.impl("record_stream", &record_stream);
    for (const char* name : {"convolution_overrideable", "convolution_backward_overrideable"})
        m.impl(name, torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

// torch.autocast, for what the tests multiply
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
    m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m){
    KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
        KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp) KERNEL_PRIVATEUSEONE(mse_loss, fp32)}

// FOR THE TESTS

at::Tensor at_address(int64_t address, at::IntArrayRef sizes, int64_t device, at::ScalarType dtype,
                      int64_t owner) {
    auto* object = reinterpret_cast<void*>(owner);
    Py_IncRef(object);
    const auto drop = [](void* kept) {
        if (!Py_IsInitialized()) return;
        const int state = PyGILState_Ensure();
        Py_DecRef(kept);
        PyGILState_Release(state);
    };
    const c10::Device place(kPlayed, static_cast<c10::DeviceIndex>(device));
    int64_t count = 1;
    for (const int64_t extent : sizes) count *= extent;
    const size_t bytes = count * c10::elementSize(dtype);
    c10::Storage storage(c10::Storage::use_byte_size_t(), bytes,
                         c10::DataPtr(reinterpret_cast<void*>(address), object, drop, place),
                         nullptr, false);
    at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), kKeys,
                                                               c10::scalarTypeToTypeMeta(dtype));
    made.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
    return made;
}

// The current stream waits until the gate is opened.
int64_t close_gate(int64_t device) {
    auto* gate = new PointPtr(std::make_shared<Point>());
    enqueue(static_cast<int>(device), [point = *gate] { point->wait(); });
    return reinterpret_cast<int64_t>(gate);
}
void open_gate(int64_t gate) {
    auto* point = reinterpret_cast<PointPtr*>(gate);
    (*point)->set();
    delete point;
}
int64_t waits_of_the_host() {
    return waits;
}
int64_t current_stream(int64_t device) {
    return current[device];
}
int64_t set_current_stream(int64_t device, int64_t stream) {
    return std::exchange(current[device], stream);
}
// Orders what is enqueued on `stream` after what is on the current one; and the reverse.
void order(int64_t device, int64_t stream) {
    if (stream != current[device])
        block(recorded(static_cast<int>(device), current[device]), static_cast<int>(device),
              stream);
}
void wait_on_stream(int64_t device, int64_t stream) {
    if (stream != current[device])
        block(recorded(static_cast<int>(device), stream), static_cast<int>(device),
              current[device]);
}

// Graphs: numbers of what is captured on the current stream of a device.
std::mutex graphs_mutex;
std::vector<std::shared_ptr<fake::Capture>>& graphs() {
    static auto& all = *new std::vector<std::shared_ptr<fake::Capture>>;
    return all;
}
void begin_capture(int64_t device) {
    fake::begin_capture(handle_of(current[device]));
}
int64_t end_capture(int64_t device) {
    auto graph = fake::end_capture(handle_of(current[device]));
    TORCH_CHECK(graph, "played: a stream that was captured did not come back");
    const std::lock_guard lock(graphs_mutex);
    graphs().push_back(std::move(graph));
    return static_cast<int64_t>(graphs().size()) - 1;
}
void launch_graph(int64_t graph, int64_t device) {
    const std::lock_guard lock(graphs_mutex);
    fake::launch(graphs().at(static_cast<std::size_t>(graph)), handle_of(current[device]));
}
void free_graph(int64_t graph) {
    std::shared_ptr<fake::Capture> freed;
    const std::lock_guard lock(graphs_mutex);
    freed.swap(graphs().at(static_cast<std::size_t>(graph)));
}
bool capturing(int64_t device) {
    return fake::keep_in_capture(static_cast<int>(device), handle_of(current[device]), [] {});
}

TORCH_LIBRARY(played, m) {
    m.def("begin_capture(int device) -> ()", &begin_capture);
    m.def("end_capture(int device) -> int", &end_capture);
    m.def("launch_graph(int graph, int device) -> ()", &launch_graph);
    m.def("free_graph(int graph) -> ()", &free_graph);
    m.def("capturing(int device) -> bool", &capturing);
    m.def("at(int address, int[] sizes, int device, ScalarType dtype, int owner) -> Tensor",
          &at_address);
    m.def("close_gate(int device) -> int", &close_gate);
    m.def("open_gate(int gate) -> ()", &open_gate);
    m.def("waits() -> int", &waits_of_the_host);
    m.def("current_stream(int device) -> int", &current_stream);
    m.def("set_current_stream(int device, int stream) -> int", &set_current_stream);
    m.def("order(int device, int stream) -> ()", &order);
    m.def("wait_on_stream(int device, int stream) -> ()", &wait_on_stream);
}

}  // namespace
