#include "launch/environment.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "util/deadline.h"
#include "util/error.h"
#include "util/hash.h"
#include "util/host.h"
#include "util/options.h"
#include "util/ports.h"

namespace libddp {
namespace {

// Names of variables, with spaces between them.
using Names = std::string_view;

// Where rank 0's address comes from when neither DDP_STORE nor MASTER_ADDR is set.
enum class Fallback {
    kNone,
    kOneHost,   // loopback if all ranks are here, else Slurm's node list if there is one
    kNodeList,  // Slurm's node list
};

// A launcher and the variables that it sets. The first variable of each list that is set counts.
struct Launcher {
    const char* name;
    Names marks;  // one of these set: this launcher started the process
    Names rank;
    Names world_size;
    Names local_rank;
    Names local_world_size;
    Names restart;
    // together they tell this job from others; none for ddprun, which makes a secret for each
    Names job;
    Fallback fallback;
    Names also_rank = {};  // the same launcher sets these, too
};

// In the order in which they are tried: a launcher comes before those whose variables it may
// inherit (torchrun inside a Slurm allocation, say).
const std::vector<Launcher>& launchers() {
    static const std::vector<Launcher> all = {
        {"ddprun", "DDP_RANK", "DDP_RANK", "DDP_WORLD_SIZE", "DDP_LOCAL_RANK",
         "DDP_LOCAL_WORLD_SIZE", "DDP_RESTART", "", Fallback::kNone},
        {"torchrun", "TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT TORCHELASTIC_USE_AGENT_STORE",
         "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT",
         "TORCHELASTIC_RUN_ID", Fallback::kNone},
        {"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
         "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "",
         "PMIX_NAMESPACE OMPI_MCA_ess_base_jobid", Fallback::kOneHost},
        {"pmi", "PMI_RANK", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID PMI_LOCAL_RANK",
         "MPI_LOCALNRANKS PMI_LOCAL_SIZE", "", "PMI_JOBID PMIX_NAMESPACE", Fallback::kOneHost},
        // The ranks of this host are in the list of tasks of each node.
        {"slurm", "SLURM_PROCID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS SLURM_NTASKS SLURM_NPROCS",
         "SLURM_LOCALID", "", "SLURM_RESTART_COUNT", "SLURM_JOB_ID SLURM_STEP_ID",
         Fallback::kNodeList, "PMIX_RANK"},
        // After Slurm, which sets PMIX_RANK as well and knows more.
        {"pmi", "PMIX_RANK", "PMIX_RANK", "PMI_SIZE WORLD_SIZE", "MPI_LOCALRANKID",
         "MPI_LOCALNRANKS", "", "PMIX_NAMESPACE", Fallback::kOneHost},
        {"kubernetes", "JOB_COMPLETION_INDEX", "JOB_COMPLETION_INDEX", "WORLD_SIZE DDP_WORLD_SIZE",
         "LOCAL_RANK", "LOCAL_WORLD_SIZE", "", "", Fallback::kNone},
        {"variables", "RANK WORLD_SIZE", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "",
         "", Fallback::kNone},
    };
    return all;
}

// Identify the job, the same in all its ranks and different in the next job on this host.
constexpr Names kJobIds =
    "SLURM_JOB_ID SLURM_STEP_ID PMIX_NAMESPACE OMPI_MCA_orte_hnp_uri OMPI_MCA_ess_base_jobid "
    "PMI_JOBID";
// srun sets these for the tasks of a step. A batch script has SLURM_PROCID=0 as well, but none of
// these.
constexpr Names kSteps = "SLURM_STEP_NUM_TASKS SLURM_STEP_NODELIST SLURM_STEP_TASKS_PER_NODE";
constexpr Names kNodeLists = "SLURM_STEP_NODELIST SLURM_JOB_NODELIST SLURM_NODELIST";
constexpr Names kTasksPerNode = "SLURM_STEP_TASKS_PER_NODE SLURM_TASKS_PER_NODE";

// Each launcher starts its tasks once, so the names that it does not share with others tell how
// many there are.
struct Tasks {
    const char* launcher;
    const char* count;
};
const Tasks kStartedTasks[] = {
    {"openmpi", "OMPI_COMM_WORLD_SIZE"}, {"pmi", "PMI_SIZE"}, {"slurm", "SLURM_STEP_NUM_TASKS"}};

struct Variable {
    std::string name;
    std::string value;
};

std::vector<std::string> each_of(Names names) {
    std::vector<std::string> list;
    for (std::size_t end; !names.empty(); names.remove_prefix(std::min(end + 1, names.size()))) {
        end = std::min(names.find(' '), names.size());
        list.emplace_back(names.substr(0, end));
    }
    return list;
}

class Discovery {
public:
    explicit Discovery(const GetEnv& get) : get_(get) {}
    JobEnvironment run();

private:
    std::optional<Variable> find(Names names) const;
    Variable require(const Launcher& launcher, Names names, const Variable& mark) const;
    std::optional<std::int32_t> local_number(Names names) const;
    std::optional<std::int32_t> slurm_local_size() const;
    std::string address(const Launcher& launcher, const JobEnvironment& job) const;
    std::string master_address(const Variable& host, const Launcher& launcher) const;
    std::optional<std::string> fallback_host(const Launcher& launcher,
                                             const JobEnvironment& job) const;
    std::optional<std::string> node_list_host() const;
    int derived_port() const;
    void read_ranks(const Launcher& launcher, const Variable& mark, JobEnvironment& job) const;
    std::optional<Variable> mark_of(const Launcher& launcher) const;
    bool is_batch_script() const;
    void refuse_contradictions(const Launcher& launcher, const Variable& mark) const;
    std::string smaller_than_outside(const Launcher& launcher, const JobEnvironment& job) const;
    void read_store(const Launcher& launcher, JobEnvironment& job) const;

    const GetEnv& get_;
};

std::string tcp(const std::string& host, int port) {
    return "tcp://" + host_and_port(host, port);
}

// A variable that is set to nothing counts as not set, as in a shell's ${NAME:-}.
std::optional<Variable> Discovery::find(Names names) const {
    for (const std::string& name : each_of(names))
        if (auto value = get_(name); value && !value->empty()) return Variable{name, *value};
    return std::nullopt;
}

[[noreturn]] void refuse_forgotten_srun(const std::string& size) {
    fail(DDP_ERROR_INVALID_ARGUMENT, "env://: ", size,
         ", but srun did not start this process: SLURM_STEP_NUM_TASKS is not set. It is the batch "
         "script or a child of it, and the other ranks would never come. In the script, start the "
         "program with srun, or with ddprun, torchrun or mpirun. If it is to train alone, unset "
         "SLURM_PROCID");
}

Variable Discovery::require(const Launcher& launcher, Names names, const Variable& mark) const {
    if (auto found = find(names)) return *found;
    if (mark.name == "SLURM_PROCID" && is_batch_script())
        refuse_forgotten_srun(str("the allocation has ",
                                  find("SLURM_JOB_NUM_NODES").value_or(Variable{"", "?"}).value,
                                  " nodes (SLURM_JOB_NUM_NODES)"));
    if (mark.name == "JOB_COMPLETION_INDEX")
        fail(DDP_ERROR_INVALID_ARGUMENT, "env://: JOB_COMPLETION_INDEX=", mark.value,
             " is set, so this is a pod of an Indexed Job of Kubernetes, but nothing tells how "
             "many pods train together: set WORLD_SIZE to the Job's completions, and MASTER_ADDR "
             "and MASTER_PORT to the first pod's name and a free port (docs/kubernetes.md). If "
             "each pod trains alone, set RANK=0 and WORLD_SIZE=1");
    fail(DDP_ERROR_INVALID_ARGUMENT, "env://: ", mark.name,
         " is set, so the launcher is taken for '", launcher.name, "', but ",
         each_of(names).front(), " is not set");
}

std::optional<std::int32_t> Discovery::local_number(Names names) const {
    auto found = find(names);
    if (!found) return std::nullopt;
    return static_cast<std::int32_t>(parse_int(found->value, 0, INT32_MAX, found->name));
}

std::optional<std::int32_t> Discovery::slurm_local_size() const {
    auto list = find(kTasksPerNode);
    if (!list) return std::nullopt;
    auto node = find("SLURM_NODEID");
    std::int64_t index = node ? parse_int(node->value, 0, INT32_MAX, node->name) : 0;
    auto tasks = slurm_tasks_on_node(list->value, index);
    if (!tasks)
        fail(DDP_ERROR_INVALID_ARGUMENT, list->name, ": '", list->value,
             "' does not tell the tasks of node ", index);
    return tasks;
}

void Discovery::read_ranks(const Launcher& launcher, const Variable& mark,
                           JobEnvironment& job) const {
    Variable rank = require(launcher, launcher.rank, mark);
    Variable world = require(launcher, launcher.world_size, mark);
    job.rank = static_cast<std::int32_t>(parse_int(rank.value, 0, INT32_MAX, rank.name));
    job.world_size = static_cast<std::int32_t>(parse_int(world.value, 1, INT32_MAX, world.name));
    if (job.rank >= job.world_size)
        fail(DDP_ERROR_INVALID_ARGUMENT, rank.name, ": is ", job.rank, ", but ", world.name, " is ",
             job.world_size, ", so ranks go from 0 to ", job.world_size - 1);
    job.local_rank = local_number(launcher.local_rank).value_or(0);
    auto local_size = local_number(launcher.local_world_size);
    if (!local_size && launcher.fallback == Fallback::kNodeList) local_size = slurm_local_size();
    job.local_world_size = local_size.value_or(job.local_rank + 1);
    if (job.local_rank >= job.local_world_size || job.local_world_size > job.world_size)
        fail(DDP_ERROR_INVALID_ARGUMENT, "env://: local rank ", job.local_rank, " of ",
             job.local_world_size, " does not fit rank ", job.rank, " of ", job.world_size,
             " (launcher '", launcher.name, "')");
    if (auto restart = find(launcher.restart))
        job.restart = parse_int(restart->value, 0, INT64_MAX, restart->name);
}

// Its process, and those that it starts without srun, are no tasks: sbatch gives them the first
// task's number.
bool Discovery::is_batch_script() const {
    const auto task = find("SLURM_PROCID");
    return task && task->value == "0" && !find(kSteps);
}

// The variable that tells that this launcher started the process.
std::optional<Variable> Discovery::mark_of(const Launcher& launcher) const {
    auto mark = find(launcher.marks);
    if (!mark) return std::nullopt;
    // A pod may start several ranks, and its index is then no rank.
    if (mark->name == "JOB_COMPLETION_INDEX" && find("RANK")) return std::nullopt;
    // Without a number of tasks, sbatch was asked for one process on each node. The script is the
    // only one so far.
    const bool no_task =
        mark->name == "SLURM_PROCID" && is_batch_script() && !find(launcher.world_size);
    if (no_task && find("RANK WORLD_SIZE")) return std::nullopt;
    if (no_task && find("SLURM_JOB_NUM_NODES").value_or(Variable{"", "1"}).value == "1")
        return std::nullopt;
    return mark;
}

// A launcher that starts inside of another one may say something else, and is right. No launcher
// sets the variables below and leaves those of `launcher` in force, so values that differ come from
// two places.
void Discovery::refuse_contradictions(const Launcher& launcher, const Variable& mark) const {
    struct Fact {
        Names own;
        Names others;
    };
    const std::string also_rank = str("DDP_RANK RANK ", launcher.also_rank);
    const Fact facts[] = {{launcher.rank, also_rank},
                          {launcher.world_size, "DDP_WORLD_SIZE WORLD_SIZE"},
                          {launcher.local_rank, "DDP_LOCAL_RANK LOCAL_RANK"},
                          {launcher.local_world_size, "DDP_LOCAL_WORLD_SIZE LOCAL_WORLD_SIZE"}};
    std::string differences;
    std::string of_launcher = mark.name;
    std::string of_others;
    const auto add = [](std::string& list, const char* separator, const std::string& item) {
        if (str(", ", list, ",").find(str(", ", item, ",")) == std::string::npos)
            list += (list.empty() ? "" : separator) + item;
    };
    for (const Fact& fact : facts) {
        const auto own = find(fact.own);
        if (!own) continue;
        for (const std::string& name : each_of(fact.others)) {
            const auto other = find(name);
            if (!other || other->name == own->name) continue;
            if (parse_int(other->value, 0, INT32_MAX, other->name) ==
                parse_int(own->value, 0, INT32_MAX, own->name))
                continue;
            add(differences, ", and ",
                str(own->name, " is ", own->value, " where ", name, " is ", other->value));
            add(of_launcher, ", ", own->name);
            add(of_others, ", ", name);
        }
    }
    if (differences.empty()) return;
    fail(DDP_ERROR_INVALID_ARGUMENT, "env://: two launchers contradict each other: ", differences,
         ". If this process is what ", of_launcher, " say (launcher '", launcher.name, "'), unset ",
         of_others, ", or set them to the same. Otherwise unset ", of_launcher);
}

// Tasks of the launcher around this one, which cannot all be in this job. "": none.
std::string Discovery::smaller_than_outside(const Launcher& launcher,
                                            const JobEnvironment& job) const {
    for (const Tasks& outside : kStartedTasks) {
        const auto count = find(outside.count);
        if (!count || launcher.name == std::string_view(outside.launcher)) continue;
        if (parse_int(count->value, 1, INT32_MAX, count->name) <= job.world_size) continue;
        return str(
            "the launcher '", launcher.name, "' says that this job has ", job.world_size,
            " rank(s), but it runs inside of ", count->value, " tasks of '", outside.launcher,
            "' (", count->name,
            "). If each task started a launcher of its own, each trains a model of its own. If all "
            "are to train one, tell the launcher the number of nodes and where node 0 is");
    }
    return "";
}

// Below the range from which systems take ports for outgoing connections, or in the lower half of
// the allowed ones: other listeners take the highest.
int Discovery::derived_port() const {
    PortRange ports{15'000, 31'999};
    if (const auto allowed = parse_ports(get_("DDP_PORTS").value_or("")))
        ports = {allowed->first, (allowed->first + allowed->last) / 2};
    const auto count = static_cast<std::uint64_t>(ports.last - ports.first + 1);
    std::string id;
    for (const std::string& name : each_of(kJobIds))
        if (auto found = find(name)) id += found->value + '\n';
    if (id.empty()) id = std::to_string(getppid());  // the launcher's local process
    return ports.first + static_cast<int>(Hash().add(id).value() % count);
}

std::string Discovery::master_address(const Variable& host, const Launcher& launcher) const {
    auto port = find("MASTER_PORT");
    if (!port) {
        if (launcher.fallback != Fallback::kNone) return tcp(host.value, derived_port());
        fail(DDP_ERROR_INVALID_ARGUMENT, "env://: MASTER_ADDR is set, but MASTER_PORT is not");
    }
    std::int64_t number = parse_int(port->value, 1, 65535, port->name);
    // The agent's own store listens on MASTER_PORT then.
    auto agent = find("TORCHELASTIC_USE_AGENT_STORE");
    if (agent && agent->value == "True")
        number = parse_int(std::to_string(number + 1), 1, 65535, "MASTER_PORT + 1");
    return tcp(host.value, static_cast<int>(number));
}

std::optional<std::string> Discovery::node_list_host() const {
    auto list = find(kNodeLists);
    if (!list) return std::nullopt;
    auto host = first_slurm_host(list->value);
    if (!host)
        fail(DDP_ERROR_INVALID_ARGUMENT, list->name, ": '", list->value,
             "' is not a list of hosts");
    return host;
}

std::optional<std::string> Discovery::fallback_host(const Launcher& launcher,
                                                    const JobEnvironment& job) const {
    if (launcher.fallback == Fallback::kNone) return std::nullopt;
    bool all_here = find(launcher.local_world_size) && job.local_world_size == job.world_size;
    if (launcher.fallback == Fallback::kOneHost && all_here) return "127.0.0.1";
    return node_list_host();
}

std::string Discovery::address(const Launcher& launcher, const JobEnvironment& job) const {
    if (auto store = find("DDP_STORE")) return store->value;
    if (auto host = find("MASTER_ADDR")) return master_address(*host, launcher);
    if (auto host = fallback_host(launcher, job)) {
        auto port = find("MASTER_PORT");
        return tcp(*host, port ? static_cast<int>(parse_int(port->value, 1, 65535, port->name))
                               : derived_port());
    }
    if (job.world_size > 1) refuse_without_address(job);
    return "";
}

void Discovery::read_store(const Launcher& launcher, JobEnvironment& job) const {
    job.store_uri = address(launcher, job);
    auto hosted = find("DDP_STORE_HOSTED");
    if (!hosted) return;
    if (hosted->value != "launcher" && hosted->value != "rank0")
        fail(DDP_ERROR_INVALID_ARGUMENT, "DDP_STORE_HOSTED: is '", hosted->value,
             "', not 'launcher' or 'rank0'");
    job.rank0_hosts_store = hosted->value == "rank0";
}

// Variables that a launcher, or a person, sets together with a rank.
constexpr Names kWithRank =
    "DDP_STORE DDP_WORLD_SIZE MASTER_ADDR LOCAL_RANK LOCAL_WORLD_SIZE OMPI_COMM_WORLD_SIZE "
    "PMI_SIZE";

JobEnvironment Discovery::run() {
    parse_ports(get_("DDP_PORTS").value_or(""));  // a mistake is found where nothing listens, too
    for (const auto& launcher : launchers()) {
        auto mark = mark_of(launcher);
        if (!mark) continue;
        JobEnvironment job;
        job.launcher = launcher.name;
        read_ranks(launcher, *mark, job);
        refuse_contradictions(launcher, *mark);
        if (mark->name == "SLURM_PROCID" && is_batch_script() && job.world_size > 1)
            refuse_forgotten_srun(str("SLURM_NTASKS is ", job.world_size));
        read_store(launcher, job);
        for (const std::string& name : each_of(launcher.job))
            if (const auto part = find(name)) job.id += str(name, '=', part->value, '\n');
        job.doubt = smaller_than_outside(launcher, job);
        return job;
    }
    if (const auto lonely = find(kWithRank))
        fail(DDP_ERROR_INVALID_ARGUMENT, "env://: ", lonely->name,
             " is set, but nothing tells this process's rank: set RANK and WORLD_SIZE as well, or "
             "start the program with ddprun, torchrun, mpirun or srun, or unset ",
             lonely->name);
    fail(DDP_ERROR_NOT_FOUND,
         "env://: the environment does not tell this process's rank. Start the program with "
         "ddprun, torchrun, mpirun or srun, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT "
         "(ddprun -n 2 ./program does it all)");
}

}  // namespace

std::optional<std::string> process_env(const std::string& name) {
    const char* value = std::getenv(name.c_str());
    return value ? std::optional<std::string>(value) : std::nullopt;
}

std::int64_t default_timeout_ms(const GetEnv& get) {
    constexpr const char* kName = "DDP_TIMEOUT_MS";
    const auto value = get(kName);
    if (!value || value->empty()) return kDefaultTimeoutMs;
    return parse_int(*value, 1, kLongestWaitMs, kName);
}

ElasticEnvironment elastic_environment(const GetEnv& get) {
    const auto world = [&get](const char* name) -> std::int32_t {
        const auto value = get(name);
        if (!value || value->empty()) return 0;
        return static_cast<std::int32_t>(parse_int(*value, 1, INT32_MAX, name));
    };
    return {world("DDP_ELASTIC_MIN_WORLD"), world("DDP_ELASTIC_MAX_WORLD"),
            world("DDP_ELASTIC_FIRST_WORLD")};
}

void refuse_without_address(const JobEnvironment& job) {
    fail(DDP_ERROR_INVALID_ARGUMENT, "env://: the launcher '", job.launcher, "' tells rank ",
         job.rank, " of ", job.world_size,
         ", but not where rank 0 is: set MASTER_ADDR and MASTER_PORT to rank 0's host and a free "
         "port, or DDP_STORE to tcp://host:port");
}

JobEnvironment discover_environment(const GetEnv& get) {
    return Discovery(get).run();
}

bool launched(const GetEnv& get) {
    try {
        discover_environment(get);
        return true;
    } catch (const Error& error) {
        if (error.info().code != DDP_ERROR_NOT_FOUND) throw;
        return false;
    }
}

namespace {

std::optional<std::int64_t> number(std::string_view text) {
    std::int64_t value = 0;
    auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (code != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
    return value;
}

}  // namespace

std::optional<std::string> first_slurm_host(std::string_view nodelist) {
    std::string host;
    while (!nodelist.empty() && nodelist.front() != ',') {
        char letter = nodelist.front();
        nodelist.remove_prefix(1);
        if (letter == ']') return std::nullopt;
        if (letter != '[') {
            host += letter;
            continue;
        }
        auto close = nodelist.find(']');
        if (close == std::string_view::npos) return std::nullopt;
        std::string_view first = nodelist.substr(0, close);
        first = first.substr(0, first.find_first_of(",-"));
        if (!number(first)) return std::nullopt;
        host += first;  // as text: the zeros in front belong to the name
        nodelist.remove_prefix(close + 1);
    }
    if (host.empty()) return std::nullopt;
    return host;
}

std::optional<std::int32_t> slurm_tasks_on_node(std::string_view list, std::int64_t node) {
    while (!list.empty() && node >= 0) {
        auto comma = list.find(',');
        std::string_view item = list.substr(0, comma);
        list = comma == std::string_view::npos ? std::string_view() : list.substr(comma + 1);
        std::int64_t nodes = 1;
        if (auto times = item.find("(x"); times != std::string_view::npos) {
            if (item.back() != ')') return std::nullopt;
            auto repeated = number(item.substr(times + 2, item.size() - times - 3));
            if (!repeated) return std::nullopt;
            nodes = *repeated;
            item = item.substr(0, times);
        }
        auto tasks = number(item);
        if (!tasks || *tasks > INT32_MAX) return std::nullopt;
        if (node < nodes) return static_cast<std::int32_t>(*tasks);
        node -= nodes;
    }
    return std::nullopt;
}

}  // namespace libddp
