// One rank whose process is in a strange state, for the tests beside this file: carries out the
// verbs on its command line.
//
//     worker RANK WORLD URI BACKEND VERB...
//
// Each verb writes a line on standard output, "VERB VALUE...". The first error is the line "error
// CODE RANK MESSAGE" and ends the program with status 3. No line holds a number that a locale
// writes in another way.
#include <ddp/backend.h>
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ddp/ddp.hpp>
#include <fstream>
#include <functional>
#include <iterator>
#include <locale>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int kParams = 3;
constexpr int kRows = 40, kColumns = 30;

// Writes 29517 as 2.9.5.1.7, and 1.5 as 1,5.
struct Strange : std::numpunct<char> {
    char do_thousands_sep() const override { return '.'; }
    char do_decimal_point() const override { return ','; }
    std::string do_grouping() const override { return "\1"; }
    std::string do_truename() const override { return "wahr"; }
};

struct Model {
    explicit Model(ddp_group* group) : context(group) {
        for (int i = 0; i < kParams; ++i) {
            values.emplace_back(kRows * kColumns, 1.0f);
            gradients.emplace_back(kRows * kColumns);
            context.add_param<float>("weight" + std::to_string(i), {kRows, kColumns},
                                     values.back().data(), gradients.back().data());
        }
    }
    // A step; every rank's gradient is another one.
    void step(int rank, std::int64_t number) {
        for (int i = kParams - 1; i >= 0; --i) {
            float* gradient = gradients[static_cast<std::size_t>(i)].data();
            for (int k = 0; k < kRows * kColumns; ++k)
                gradient[k] = static_cast<float>((k * 7 + i * 3 + number) % 11 + 2 * rank);
            context.grad_ready(i);
        }
        context.finalize();
    }
    // The same on all ranks, and with the default hook: the mean.
    long long sum() const {
        double all = 0;
        for (const auto& gradient : gradients)
            for (const float value : gradient) all += static_cast<double>(value);
        return static_cast<long long>(all * 1000);
    }

    std::vector<std::vector<float>> values, gradients;
    ddp::Context context;
};

struct Program {
    int rank = 0, world = 1;
    std::string uri, backend;
    std::int64_t timeout_ms = 20'000;
    std::unique_ptr<ddp::Group> group, second;
    std::unique_ptr<Model> model;  // freed before its group

    ddp_group_options options() const {
        ddp_group_options options = ddp::Group::defaults();
        options.rank = rank;
        options.world_size = world;
        options.init_method = uri.c_str();
        options.backend = backend.c_str();
        options.timeout_ms = timeout_ms;
        return options;
    }
    void join() { group = std::make_unique<ddp::Group>(options()); }
    Model& of_group() {
        if (!model) {
            model = std::make_unique<Model>(group->get());
            model->context.commit();
        }
        return *model;
    }
};

void say(const char* verb, long long value) {
    std::printf("%s %lld\n", verb, value);
    std::fflush(stdout);
}

// ---- verbs

void numpunct(Program&, const std::string&) {
    std::locale::global(std::locale(std::locale(), new Strange));
}

void c_locale(Program&, const std::string& name) {
    if (!std::setlocale(LC_ALL, name.c_str()))
        throw std::runtime_error("there is no locale " + name);
    char text[16];
    std::snprintf(text, sizeof text, "%.1f", 1.5);
    if (std::strcmp(text, "1,5") != 0) throw std::runtime_error("the locale has no decimal comma");
}

void timeout(Program& program, const std::string& ms) {
    program.timeout_ms = std::stoll(ms);
}

void join(Program& program, const std::string&) {
    program.join();
}

void allreduce(Program& program, const std::string& count) {
    std::vector<float> values(count.empty() ? 100'000 : std::stoul(count),
                              static_cast<float>(program.rank + 1));
    program.group->allreduce(values.data(), values.size()).wait();
    const bool same =
        std::all_of(values.begin(), values.end(), [&](float value) { return value == values[0]; });
    say("allreduce", same ? static_cast<long long>(values[0]) : -1);
}

// Another group of all ranks.
void second(Program& program, const std::string&) {
    ddp_group_options options = program.options();
    options.group_name = "second";
    program.second = std::make_unique<ddp::Group>(options);
}

void allreduce_second(Program& program, const std::string&) {
    std::vector<float> values(4, 1);
    program.second->allreduce(values.data(), values.size()).wait();
    say("allreduce_second", static_cast<long long>(values[0]));
}

void abort_group(Program& program, const std::string& reason) {
    ddp::detail::call(ddp_group_abort, program.group->get(), reason.c_str());
}

void quit(Program&, const std::string& status) {
    std::fflush(stdout);
    status == "_exit" ? _exit(7) : std::exit(std::stoi(status));
}

// Frees the group while an allreduce waits for the other ranks.
void abandon(Program& program, const std::string&) {
    std::vector<float> values(1000);
    ddp_work* work = nullptr;
    ddp::detail::call(ddp_allreduce, program.group->get(), static_cast<const void*>(nullptr),
                      static_cast<void*>(values.data()), values.size(), DDP_F32, DDP_SUM, &work);
    program.group.reset();
    ddp_error* error = nullptr;
    ddp_work_wait(work, 0, &error);
    std::printf("abandoned %s\n", error ? ddp_error_message(error) : "");
    ddp_error_free(error);
    ddp_work_free(work);
}

void train(Program& program, const std::string& steps) {
    for (int i = 0; i < std::stoi(steps); ++i) program.of_group().step(program.rank, i);
    say("train", program.model->sum());
}

void hook(Program& program, const std::string& text) {
    program.model = std::make_unique<Model>(program.group->get());
    const auto colon = text.find(':');
    ddp::detail::call(ddp_use_hook, program.model->context.get(), text.substr(0, colon).c_str(),
                      colon == std::string::npos ? nullptr : text.c_str() + colon + 1);
    program.model->context.commit();
}

void save(Program& program, const std::string& path) {
    void* data = nullptr;
    std::size_t size = 0;
    ddp::detail::call(ddp_hook_state_save, program.of_group().context.get(), &data, &size);
    std::ofstream(path, std::ios::binary)
        .write(static_cast<const char*>(data), static_cast<std::streamsize>(size));
    ddp_free(data);
}

void load(Program& program, const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    const std::string data((std::istreambuf_iterator<char>(file)), {});
    ddp::detail::call(ddp_hook_state_load, program.of_group().context.get(),
                      static_cast<const void*>(data.data()), data.size(), std::uint32_t{0});
}

void elastic(Program& program, const std::string& steps) {
    ddp_group_options group = program.options();
    group.rank = group.world_size = -1;
    ddp_elastic_options options;
    ddp_elastic_options_init(&options);
    options.group = &group;
    options.min_world = options.max_world = program.world;
    ddp::Elastic job(options);
    Model model(job.group());
    model.context.commit();
    job.add_context(model.context);
    for (int i = 0; i < std::stoi(steps); ++i) {
        const ddp_elastic_step step = job.begin();
        if (step.world_size != program.world) throw std::runtime_error("the world is another one");
        model.step(step.rank, step.step);
        job.commit();
    }
    say("elastic", model.sum());
    job.leave();
}

void available(Program&, const std::string& backend) {
    say("available", ddp_backend_available(backend.c_str(), nullptr));
}

void client(Program& program, const std::string&) {
    ddp_store_options options;
    ddp_store_options_init(&options);
    options.uri = program.uri.c_str();
    options.timeout_ms = 500;
    ddp_store* store = nullptr;
    ddp::detail::call(ddp_store_create, &options, &store);
    ddp_store_free(store);
}

void nap(Program&, const std::string& ms) {
    std::this_thread::sleep_for(std::chrono::milliseconds(std::stoi(ms)));
}

// ---- threads that are cancelled

// Runs the call on a thread that is cancelled while it waits, and says whether the thread was
// cancelled after the call.
void cancel_in(const std::function<void()>& call, int type) {
    struct Thread {
        const std::function<void()>& call;
        int type;
        std::atomic<bool> returned{false};
    } thread{call, type};
    const auto run = [](void* data) -> void* {
        auto& self = *static_cast<Thread*>(data);
        pthread_setcanceltype(self.type, nullptr);
        self.call();
        self.returned = true;
        for (;;) pthread_testcancel();
    };
    pthread_t id;
    pthread_create(&id, nullptr, run, &thread);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    pthread_cancel(id);
    void* end = nullptr;
    pthread_join(id, &end);
    say("cancelled", end == PTHREAD_CANCELED);
    say("returned", thread.returned);
}

void cancel(Program& program, const std::string& what) {
    const int type = what == "async" ? PTHREAD_CANCEL_ASYNCHRONOUS : PTHREAD_CANCEL_DEFERRED;
    ddp_store* store = nullptr;
    ddp::detail::call(ddp_group_store, program.group->get(), &store);
    ddp_status status = DDP_OK;
    if (what == "allreduce") {
        std::vector<float> values(1000, static_cast<float>(program.rank + 1));
        cancel_in(
            [&] {
                status = ddp_allreduce(program.group->get(), nullptr, values.data(), values.size(),
                                       DDP_F32, DDP_SUM, nullptr, nullptr);
            },
            type);
        say("value", static_cast<long long>(values.back()));
    } else if (what == "train") {
        Model& model = program.of_group();
        cancel_in([&] { model.step(program.rank, 0); }, type);
        say("train", model.sum());
    } else {
        cancel_in(
            [&] {
                void* value = nullptr;
                std::size_t size = 0;
                status = ddp_store_get(store, "nobody sets this", 1000, &value, &size, nullptr);
            },
            type);
    }
    std::printf("status %s\n", ddp_status_name(status));
    ddp::detail::call(ddp_store_set, store, "after", static_cast<const void*>("x"), std::size_t{1});
    ddp_store_free(store);
}

// ---- forks

std::string status_of(const std::function<ddp_status(ddp_error**)>& call) {
    ddp_error* error = nullptr;
    const ddp_status status = call(&error);
    const std::string text = std::string(ddp_status_name(status)) +
                             (error ? std::string(" ") + ddp_error_message(error) : "");
    ddp_error_free(error);
    return text;
}

// The calls of a child on what its parent has.
void use_inherited(Program& program, ddp_store* store, ddp_work* work) {
    std::vector<float> values(100'000);
    ddp_group* group = program.group->get();
    ddp_context* context = program.of_group().context.get();
    const std::pair<const char*, std::function<ddp_status(ddp_error**)>> calls[] = {
        {"ddp_allreduce",
         [&](ddp_error** e) {
             return ddp_allreduce(group, nullptr, values.data(), 9, DDP_F32, DDP_SUM, nullptr, e);
         }},
        {"ddp_barrier", [&](ddp_error** e) { return ddp_barrier(group, nullptr, e); }},
        {"ddp_group_status", [&](ddp_error** e) { return ddp_group_status(group, e); }},
        {"ddp_group_abort", [&](ddp_error** e) { return ddp_group_abort(group, "a child", e); }},
        {"ddp_store_set", [&](ddp_error** e) { return ddp_store_set(store, "child", "x", 1, e); }},
        {"ddp_work_wait", [&](ddp_error** e) { return ddp_work_wait(work, 0, e); }},
        {"ddp_grad_ready", [&](ddp_error** e) { return ddp_grad_ready(context, 0, e); }},
        {"ddp_finalize", [&](ddp_error** e) { return ddp_finalize(context, e); }},
        {"ddp_context_create",
         [&](ddp_error** e) { return ddp_context_create(group, nullptr, &context, e); }},
    };
    for (const auto& [name, call] : calls)
        std::printf("child %s %s\n", name, status_of(call).c_str());
}

// how: "exit", "free", "use", or "job" for a group of the child's own.
void fork_child(Program& program, const std::string& how) {
    ddp_store* store = nullptr;
    ddp::detail::call(ddp_group_store, program.group->get(), &store);
    ddp_work* work = nullptr;
    ddp::detail::call(ddp_barrier, program.group->get(), &work);
    program.of_group();
    void* memory = nullptr;
    ddp::detail::call(ddp_mem_alloc, program.group->get(), std::size_t{1000}, &memory);
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        if (how == "use") use_inherited(program, store, work);
        if (how == "job") {
            Program own;
            own.world = 1;
            own.uri = "tcp://127.0.0.1:0";
            own.backend = program.backend;
            own.join();
            allreduce(own, "");
            train(own, "2");
        }
        if (how != "exit") {
            ddp_work_free(work);
            ddp_store_free(store);
            ddp_mem_free(memory, nullptr);
            program.model.reset();
            program.group.reset();
        }
        std::fflush(stdout);
        std::exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    say("child", status);
    ddp::detail::call(ddp_work_wait, work, std::int64_t{0});
    ddp_work_free(work);
    ddp::detail::call(ddp_store_set, store, "parent", static_cast<const void*>("x"),
                      std::size_t{1});
    ddp_store_free(store);
    ddp::detail::call(ddp_mem_free, memory);
}

// The calls of the other ranks beside a rank that forks.
void beside_fork(Program& program, const std::string&) {
    program.group->barrier();
    program.of_group();
}

// ---- other states

// A handler without SA_RESTART that runs a thousand times a second.
void signals(Program&, const std::string&) {
    struct sigaction action {};
    action.sa_handler = [](int) {};
    sigaction(SIGALRM, &action, nullptr);
    const itimerval often{{0, 1000}, {0, 1000}};
    setitimer(ITIMER_REAL, &often, nullptr);
}

// A step on a thread whose stack has so many KiB.
void small_stack(Program& program, const std::string& kib) {
    Model& model = program.of_group();
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, std::stoul(kib) * 1024);
    std::pair<Model*, int> step{&model, program.rank};
    pthread_t id;
    const auto run = [](void* data) -> void* {
        auto& [given, rank] = *static_cast<std::pair<Model*, int>*>(data);
        given->step(rank, 0);
        return nullptr;
    };
    if (pthread_create(&id, &attributes, run, &step) != 0) throw std::runtime_error("no thread");
    pthread_join(id, nullptr);
    say("small_stack", model.sum());
}

// fork and exec while the group lives.
void spawn(Program&, const std::string&) {
    say("spawn", std::system("exit 0"));
}

const std::map<std::string, std::function<void(Program&, const std::string&)>> kVerbs = {
    {"numpunct", numpunct},
    {"locale", c_locale},
    {"timeout", timeout},
    {"join", join},
    {"allreduce", allreduce},
    {"second", second},
    {"allreduce_second", allreduce_second},
    {"abort", abort_group},
    {"quit", quit},
    {"abandon", abandon},
    {"train", train},
    {"hook", hook},
    {"save", save},
    {"load", load},
    {"elastic", elastic},
    {"client", client},
    {"nap", nap},
    {"cancel", cancel},
    {"fork", fork_child},
    {"beside_fork", beside_fork},
    {"available", available},
    {"signals", signals},
    {"small_stack", small_stack},
    {"spawn", spawn},
};

// At namespace scope, as in many programs: exit() frees it, in a forked child, too.
Program program;

int run(int argc, char** argv) {
    program.rank = std::atoi(argv[1]);
    program.world = std::atoi(argv[2]);
    program.uri = argv[3];
    program.backend = argv[4];
    for (int i = 5; i < argc; ++i) {
        const std::string word = argv[i];
        const auto equals = word.find('=');
        kVerbs.at(word.substr(0, equals))(
            program, equals == std::string::npos ? "" : word.substr(equals + 1));
    }
    program.model.reset();
    program.second.reset();
    program.group.reset();
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 5) return 2;
    try {
        const int status = run(argc, argv);
        std::puts("done");
        return status;
    } catch (const ddp::Error& error) {
        std::printf("error %s %d %s\n", ddp_status_name(error.status()), error.rank(),
                    error.what());
    } catch (const std::exception& error) {
        std::printf("error - %s\n", error.what());
    }
    return 3;
}
