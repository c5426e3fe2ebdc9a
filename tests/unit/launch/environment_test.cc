#include "launch/environment.h"

#include <map>

#include "support.h"

namespace libddp {
namespace {

using Variables = std::map<std::string, std::string>;

JobEnvironment discover(const Variables& variables) {
    return discover_environment([&](const std::string& name) -> std::optional<std::string> {
        auto found = variables.find(name);
        if (found == variables.end()) return std::nullopt;
        return found->second;
    });
}

struct Found {
    const char* title;
    Variables variables;
    const char* launcher;
    int rank;
    int world;
    int local_rank;
    int local_world;
    const char* uri;  // a trailing '*': any port
};

const Found kFound[] = {
    {"ddprun",
     {{"DDP_RANK", "3"},
      {"DDP_WORLD_SIZE", "4"},
      {"DDP_LOCAL_RANK", "1"},
      {"DDP_LOCAL_WORLD_SIZE", "2"},
      {"DDP_STORE", "tcp://h:1"}},
     "ddprun",
     3,
     4,
     1,
     2,
     "tcp://h:1"},
    {"ddprun on each node of a Slurm job, started by mpirun",
     {{"DDP_RANK", "7"},
      {"DDP_WORLD_SIZE", "8"},
      {"DDP_LOCAL_RANK", "3"},
      {"DDP_LOCAL_WORLD_SIZE", "4"},
      {"DDP_STORE", "tcp://h:1"},
      {"RANK", "7"},
      {"WORLD_SIZE", "8"},
      {"LOCAL_RANK", "3"},
      {"LOCAL_WORLD_SIZE", "4"},
      {"OMPI_COMM_WORLD_RANK", "1"},
      {"OMPI_COMM_WORLD_SIZE", "2"},
      {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
      {"PMIX_RANK", "1"},
      {"SLURM_PROCID", "0"},
      {"SLURM_LOCALID", "0"},
      {"SLURM_STEP_NUM_TASKS", "2"}},
     "ddprun",
     7,
     8,
     3,
     4,
     "tcp://h:1"},
    {"torchrun",
     {{"TORCHELASTIC_RUN_ID", "x"},
      {"RANK", "1"},
      {"WORLD_SIZE", "2"},
      {"LOCAL_RANK", "1"},
      {"LOCAL_WORLD_SIZE", "2"},
      {"MASTER_ADDR", "h"},
      {"MASTER_PORT", "29500"},
      {"TORCHELASTIC_USE_AGENT_STORE", "False"}},
     "torchrun",
     1,
     2,
     1,
     2,
     "tcp://h:29500"},
    {"torchrun with the agent's store",
     {{"TORCHELASTIC_RUN_ID", "x"},
      {"RANK", "1"},
      {"WORLD_SIZE", "2"},
      {"LOCAL_RANK", "1"},
      {"LOCAL_WORLD_SIZE", "2"},
      {"MASTER_ADDR", "h"},
      {"MASTER_PORT", "29500"},
      {"TORCHELASTIC_USE_AGENT_STORE", "True"}},
     "torchrun",
     1,
     2,
     1,
     2,
     "tcp://h:29501"},
    {"torchrun inside Slurm",
     {{"TORCHELASTIC_RUN_ID", "x"},
      {"RANK", "1"},
      {"WORLD_SIZE", "2"},
      {"SLURM_PROCID", "0"},
      {"SLURM_NTASKS", "1"},
      {"MASTER_ADDR", "::1"},
      {"MASTER_PORT", "29500"}},
     "torchrun",
     1,
     2,
     0,
     1,
     "tcp://[::1]:29500"},
    {"torchrun in each task of a Slurm step",
     {{"TORCHELASTIC_RUN_ID", "x"},
      {"RANK", "5"},
      {"WORLD_SIZE", "16"},
      {"LOCAL_RANK", "5"},
      {"LOCAL_WORLD_SIZE", "8"},
      {"SLURM_PROCID", "1"},
      {"SLURM_NTASKS", "2"},
      {"SLURM_STEP_NUM_TASKS", "2"},
      {"SLURM_LOCALID", "0"},
      {"PMIX_RANK", "1"},
      {"MASTER_ADDR", "h"},
      {"MASTER_PORT", "29500"}},
     "torchrun",
     5,
     16,
     5,
     8,
     "tcp://h:29500"},
    {"torchrun in a pod of an Indexed Job",
     {{"TORCHELASTIC_RUN_ID", "x"},
      {"RANK", "5"},
      {"WORLD_SIZE", "8"},
      {"JOB_COMPLETION_INDEX", "1"},
      {"MASTER_ADDR", "h"},
      {"MASTER_PORT", "29500"}},
     "torchrun",
     5,
     8,
     0,
     1,
     "tcp://h:29500"},
    {"several ranks in a pod of an Indexed Job",
     {{"RANK", "5"},
      {"WORLD_SIZE", "8"},
      {"JOB_COMPLETION_INDEX", "1"},
      {"MASTER_ADDR", "h"},
      {"MASTER_PORT", "29500"}},
     "variables",
     5,
     8,
     0,
     1,
     "tcp://h:29500"},
    {"PyTorch's variables beside those of Slurm that they come from",
     {{"RANK", "1"},
      {"WORLD_SIZE", "2"},
      {"LOCAL_RANK", "0"},
      {"SLURM_PROCID", "1"},
      {"SLURM_LOCALID", "0"},
      {"SLURM_STEP_NUM_TASKS", "2"},
      {"MASTER_ADDR", "h"},
      {"MASTER_PORT", "29500"}},
     "slurm",
     1,
     2,
     0,
     1,
     "tcp://h:29500"},
    {"MPICH's mpiexec with a proxy on each node of a Slurm job",
     {{"PMI_RANK", "5"},
      {"PMI_SIZE", "8"},
      {"MPI_LOCALRANKID", "1"},
      {"MPI_LOCALNRANKS", "4"},
      {"SLURM_PROCID", "1"},
      {"SLURM_STEP_NUM_TASKS", "2"},
      {"SLURM_LOCALID", "0"},
      {"SLURM_JOB_NODELIST", "n[3-4]"},
      {"MASTER_PORT", "5"}},
     "pmi",
     5,
     8,
     1,
     4,
     "tcp://n3:5"},
    {"mpirun in a batch script",
     {{"OMPI_COMM_WORLD_RANK", "1"},
      {"OMPI_COMM_WORLD_SIZE", "2"},
      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
      {"SLURM_PROCID", "0"},
      {"SLURM_NTASKS", "4"},
      {"MASTER_PORT", "5"}},
     "openmpi",
     1,
     2,
     1,
     2,
     "tcp://127.0.0.1:5"},
    {"a launcher of RANK in a batch script without a number of tasks",
     {{"RANK", "1"},
      {"WORLD_SIZE", "2"},
      {"MASTER_ADDR", "h"},
      {"MASTER_PORT", "1"},
      {"SLURM_PROCID", "0"},
      {"SLURM_JOB_NUM_NODES", "2"}},
     "variables",
     1,
     2,
     0,
     1,
     "tcp://h:1"},
    {"the only task of a batch script",
     {{"SLURM_PROCID", "0"},
      {"SLURM_NTASKS", "1"},
      {"SLURM_JOB_NODELIST", "n3"},
      {"MASTER_PORT", "5"}},
     "slurm",
     0,
     1,
     0,
     1,
     "tcp://n3:5"},
    {"a world of one needs no address",
     {{"RANK", "0"}, {"WORLD_SIZE", "1"}},
     "variables",
     0,
     1,
     0,
     1,
     ""},
    {"nor does one of mpirun",
     {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}},
     "openmpi",
     0,
     1,
     0,
     1,
     ""},
    {"Open MPI on one host",
     {{"OMPI_COMM_WORLD_RANK", "1"},
      {"OMPI_COMM_WORLD_SIZE", "2"},
      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
      {"PMIX_NAMESPACE", "job-1"}},
     "openmpi",
     1,
     2,
     1,
     2,
     "tcp://127.0.0.1:*"},
    {"Open MPI on several hosts",
     {{"OMPI_COMM_WORLD_RANK", "3"},
      {"OMPI_COMM_WORLD_SIZE", "4"},
      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
      {"MASTER_ADDR", "h"},
      {"MASTER_PORT", "5"}},
     "openmpi",
     3,
     4,
     1,
     2,
     "tcp://h:5"},
    {"Open MPI in a Slurm allocation",
     {{"OMPI_COMM_WORLD_RANK", "3"},
      {"OMPI_COMM_WORLD_SIZE", "4"},
      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
      {"SLURM_JOB_NODELIST", "n[3-4]"},
      {"SLURM_JOB_ID", "9"}},
     "openmpi",
     3,
     4,
     1,
     2,
     "tcp://n3:*"},
    {"PMI",
     {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "2"}},
     "pmi",
     0,
     2,
     0,
     2,
     "tcp://127.0.0.1:*"},
    {"PMIx",
     {{"PMIX_RANK", "1"}, {"WORLD_SIZE", "2"}, {"DDP_STORE", "file:///tmp/x"}},
     "pmi",
     1,
     2,
     0,
     1,
     "file:///tmp/x"},
    {"Slurm",
     {{"SLURM_PROCID", "5"},
      {"SLURM_NTASKS", "7"},
      {"SLURM_LOCALID", "1"},
      {"SLURM_NODEID", "2"},
      {"SLURM_TASKS_PER_NODE", "2(x3),1"},
      {"SLURM_JOB_NODELIST", "n[003-007,9],x1"},
      {"SLURM_JOB_ID", "1234"}},
     "slurm",
     5,
     7,
     1,
     2,
     "tcp://n003:*"},
    {"Slurm with a port and a step",
     {{"SLURM_PROCID", "0"},
      {"SLURM_NTASKS", "2"},
      {"SLURM_STEP_NODELIST", "b"},
      {"SLURM_JOB_NODELIST", "a,b"},
      {"MASTER_PORT", "77"}},
     "slurm",
     0,
     2,
     0,
     1,
     "tcp://b:77"},
    {"Slurm with an address",
     {{"SLURM_PROCID", "0"},
      {"SLURM_STEP_NUM_TASKS", "2"},
      {"MASTER_ADDR", "m"},
      {"MASTER_PORT", "77"}},
     "slurm",
     0,
     2,
     0,
     1,
     "tcp://m:77"},
    {"Kubernetes",
     {{"JOB_COMPLETION_INDEX", "2"},
      {"DDP_WORLD_SIZE", "3"},
      {"MASTER_ADDR", "job-0.svc"},
      {"MASTER_PORT", "29500"}},
     "kubernetes",
     2,
     3,
     0,
     1,
     "tcp://job-0.svc:29500"},
    {"plain variables",
     {{"RANK", "0"},
      {"WORLD_SIZE", "2"},
      {"MASTER_ADDR", "h"},
      {"MASTER_PORT", "1"},
      {"LOCAL_RANK", "0"}},
     "variables",
     0,
     2,
     0,
     1,
     "tcp://h:1"},
    {"DDP_STORE before MASTER_ADDR",
     {{"RANK", "0"},
      {"WORLD_SIZE", "2"},
      {"MASTER_ADDR", "h"},
      {"MASTER_PORT", "1"},
      {"DDP_STORE", "tcp://other:2"}},
     "variables",
     0,
     2,
     0,
     1,
     "tcp://other:2"},
    {"set to nothing is not set",
     {{"DDP_RANK", ""},
      {"RANK", "0"},
      {"WORLD_SIZE", "1"},
      {"DDP_STORE", ""},
      {"MASTER_ADDR", "h"},
      {"MASTER_PORT", "1"}},
     "variables",
     0,
     1,
     0,
     1,
     "tcp://h:1"},
};

TEST(Environment, EveryLauncher) {
    for (const auto& item : kFound) {
        SCOPED_TRACE(item.title);
        JobEnvironment job;
        ErrorInfo error = testing::error_of([&] { job = discover(item.variables); });
        EXPECT_EQ(error.code, DDP_OK) << error.message;
        EXPECT_EQ(job.launcher, item.launcher);
        EXPECT_EQ(job.rank, item.rank);
        EXPECT_EQ(job.world_size, item.world);
        EXPECT_EQ(job.local_rank, item.local_rank);
        EXPECT_EQ(job.local_world_size, item.local_world);
        EXPECT_TRUE(job.rank0_hosts_store);
        std::string uri = item.uri;
        if (!uri.ends_with('*')) {
            EXPECT_EQ(job.store_uri, uri);
            continue;
        }
        uri.pop_back();
        ASSERT_TRUE(job.store_uri.starts_with(uri)) << job.store_uri;
        int port = std::stoi(job.store_uri.substr(uri.size()));
        EXPECT_GE(port, 15'000);
        EXPECT_LT(port, 32'000);
    }
}

TEST(Environment, ThePortOfAStoreIsAnAllowedOne) {
    for (int id = 0; id < 40; ++id) {
        Variables variables = {{"PMI_RANK", "0"},
                               {"PMI_SIZE", "2"},
                               {"MPI_LOCALNRANKS", "2"},
                               {"PMI_JOBID", std::to_string(id)},
                               {"DDP_PORTS", "20000-20009"}};
        const std::string uri = discover(variables).store_uri;
        const std::string host = "tcp://127.0.0.1:";
        ASSERT_TRUE(uri.starts_with(host)) << uri;
        const int port = std::stoi(uri.substr(host.size()));
        EXPECT_GE(port, 20000);
        EXPECT_LE(port, 20004);  // data has the upper half
    }
}

struct Wrong {
    const char* title;
    Variables variables;
    ddp_status code;
    std::vector<std::string> says;
};

const Wrong kWrong[] = {
    {"ports of which one is missing",
     {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"DDP_PORTS", "20000"}},
     DDP_ERROR_INVALID_ARGUMENT,
     {"DDP_PORTS: '20000' is not FIRST-LAST"}},
    {"nothing", {}, DDP_ERROR_NOT_FOUND, {"RANK", "WORLD_SIZE", "MASTER_ADDR", "ddprun"}},
    {"an address without a rank",
     {{"MASTER_ADDR", "h"}, {"MASTER_PORT", "29500"}},
     DDP_ERROR_INVALID_ARGUMENT,
     {"MASTER_ADDR is set", "RANK and WORLD_SIZE"}},
    {"a store without a rank",
     {{"DDP_STORE", "tcp://h:1"}},
     DDP_ERROR_INVALID_ARGUMENT,
     {"DDP_STORE is set", "RANK"}},
    {"the shell of a job",
     {{"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "2"}},
     DDP_ERROR_NOT_FOUND,
     {"RANK"}},
    {"no world",
     {{"DDP_RANK", "0"}},
     DDP_ERROR_INVALID_ARGUMENT,
     {"DDP_RANK", "DDP_WORLD_SIZE is not set"}},
    {"no rank", {{"WORLD_SIZE", "2"}}, DDP_ERROR_INVALID_ARGUMENT, {"RANK is not set"}},
    {"torchrun without a rank",
     {{"TORCHELASTIC_RUN_ID", "x"}},
     DDP_ERROR_INVALID_ARGUMENT,
     {"torchrun", "RANK is not set"}},
    {"rank is text",
     {{"RANK", "zero"}, {"WORLD_SIZE", "2"}},
     DDP_ERROR_INVALID_ARGUMENT,
     {"RANK", "zero"}},
    {"rank is negative",
     {{"RANK", "-1"}, {"WORLD_SIZE", "2"}},
     DDP_ERROR_INVALID_ARGUMENT,
     {"RANK", "-1"}},
    {"rank is too large",
     {{"RANK", "2"}, {"WORLD_SIZE", "2"}},
     DDP_ERROR_INVALID_ARGUMENT,
     {"RANK", "2", "WORLD_SIZE", "0 to 1"}},
    {"world is 0",
     {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "0"}},
     DDP_ERROR_INVALID_ARGUMENT,
     {"SLURM_NTASKS", "0"}},
    {"world is half a number",
     {{"PMI_RANK", "0"}, {"PMI_SIZE", "2x"}},
     DDP_ERROR_INVALID_ARGUMENT,
     {"PMI_SIZE", "2x"}},
    {"no address",
     {{"RANK", "0"}, {"WORLD_SIZE", "2"}},
     DDP_ERROR_INVALID_ARGUMENT,
     {"MASTER_ADDR", "DDP_STORE"}},
    {"no port",
     {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}},
     DDP_ERROR_INVALID_ARGUMENT,
     {"MASTER_PORT"}},
    {"port out of range",
     {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "65536"}},
     DDP_ERROR_INVALID_ARGUMENT,
     {"MASTER_PORT", "65536"}},
    {"no room for the agent's port",
     {{"TORCHELASTIC_USE_AGENT_STORE", "True"},
      {"RANK", "0"},
      {"WORLD_SIZE", "2"},
      {"MASTER_ADDR", "h"},
      {"MASTER_PORT", "65535"}},
     DDP_ERROR_INVALID_ARGUMENT,
     {"MASTER_PORT"}},
    {"MPI on several hosts without an address",
     {{"OMPI_COMM_WORLD_RANK", "0"},
      {"OMPI_COMM_WORLD_SIZE", "4"},
      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}},
     DDP_ERROR_INVALID_ARGUMENT,
     {"openmpi", "MASTER_ADDR"}},
    {"malformed node list",
     {{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_JOB_NODELIST", "n[1-"}},
     DDP_ERROR_INVALID_ARGUMENT,
     {"SLURM_JOB_NODELIST", "n[1-"}},
    {"malformed tasks",
     {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_TASKS_PER_NODE", "many"}},
     DDP_ERROR_INVALID_ARGUMENT,
     {"SLURM_TASKS_PER_NODE", "many"}},
    {"Kubernetes without a world",
     {{"JOB_COMPLETION_INDEX", "0"}},
     DDP_ERROR_INVALID_ARGUMENT,
     {"JOB_COMPLETION_INDEX=0", "WORLD_SIZE", "completions", "MASTER_ADDR",
      "RANK=0 and WORLD_SIZE=1"}},
    {"Slurm's task beside ranks that another launcher started",
     {{"SLURM_PROCID", "0"},
      {"SLURM_NTASKS", "1"},
      {"RANK", "1"},
      {"WORLD_SIZE", "2"},
      {"DDP_STORE", "tcp://h:1"}},
     DDP_ERROR_INVALID_ARGUMENT,
     {"SLURM_PROCID is 0 where RANK is 1", "SLURM_NTASKS is 1 where WORLD_SIZE is 2",
      "unset RANK, WORLD_SIZE", "unset SLURM_PROCID, SLURM_NTASKS"}},
    {"a world beside Slurm's task",
     {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"DDP_WORLD_SIZE", "2"}},
     DDP_ERROR_INVALID_ARGUMENT,
     {"SLURM_NTASKS is 1 where DDP_WORLD_SIZE is 2"}},
    {"torchrun inside of a rank of ddprun",
     {{"DDP_RANK", "0"},
      {"DDP_WORLD_SIZE", "1"},
      {"DDP_STORE", "tcp://h:1"},
      {"TORCHELASTIC_RUN_ID", "x"},
      {"RANK", "0"},
      {"WORLD_SIZE", "2"}},
     DDP_ERROR_INVALID_ARGUMENT,
     {"DDP_WORLD_SIZE is 1 where WORLD_SIZE is 2", "unset DDP_RANK, DDP_WORLD_SIZE"}},
    {"mpirun beside variables of PyTorch",
     {{"OMPI_COMM_WORLD_RANK", "1"},
      {"OMPI_COMM_WORLD_SIZE", "2"},
      {"RANK", "0"},
      {"WORLD_SIZE", "2"}},
     DDP_ERROR_INVALID_ARGUMENT,
     {"OMPI_COMM_WORLD_RANK is 1 where RANK is 0"}},
    {"two local ranks",
     {{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_LOCALID", "1"}, {"LOCAL_RANK", "0"}},
     DDP_ERROR_INVALID_ARGUMENT,
     {"SLURM_LOCALID is 1 where LOCAL_RANK is 0"}},
    {"PMIx beside Slurm",
     {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"PMIX_RANK", "1"}},
     DDP_ERROR_INVALID_ARGUMENT,
     {"SLURM_PROCID is 0 where PMIX_RANK is 1"}},
    {"sbatch without srun",
     {{"SLURM_PROCID", "0"},
      {"SLURM_NTASKS", "4"},
      {"SLURM_JOB_NODELIST", "n[1-2]"},
      {"SLURM_JOB_NUM_NODES", "2"}},
     DDP_ERROR_INVALID_ARGUMENT,
     {"SLURM_NTASKS is 4", "srun did not start this process", "SLURM_PROCID"}},
    {"sbatch on two nodes without srun",
     {{"SLURM_PROCID", "0"}, {"SLURM_JOB_NODELIST", "n[1-2]"}, {"SLURM_JOB_NUM_NODES", "2"}},
     DDP_ERROR_INVALID_ARGUMENT,
     {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS is not set", "srun"}},
    {"a batch script of one process",
     {{"SLURM_PROCID", "0"}, {"SLURM_JOB_NODELIST", "n1"}, {"SLURM_JOB_NUM_NODES", "1"}},
     DDP_ERROR_NOT_FOUND,
     {"RANK", "srun"}},
    {"local rank too large",
     {{"RANK", "0"},
      {"WORLD_SIZE", "4"},
      {"LOCAL_RANK", "2"},
      {"LOCAL_WORLD_SIZE", "2"},
      {"DDP_STORE", "tcp://h:1"}},
     DDP_ERROR_INVALID_ARGUMENT,
     {"local rank 2 of 2"}},
    {"unknown host of the store",
     {{"RANK", "0"},
      {"WORLD_SIZE", "4"},
      {"DDP_STORE", "tcp://h:1"},
      {"DDP_STORE_HOSTED", "rank1"}},
     DDP_ERROR_INVALID_ARGUMENT,
     {"DDP_STORE_HOSTED", "rank1"}},
    {"restart is text",
     {{"DDP_RANK", "0"}, {"DDP_WORLD_SIZE", "4"}, {"DDP_STORE", "tcp://h:1"}, {"DDP_RESTART", "x"}},
     DDP_ERROR_INVALID_ARGUMENT,
     {"DDP_RESTART", "x"}},
};

TEST(Environment, TimeoutOfGroups) {
    const auto with = [](std::optional<std::string> value) {
        return default_timeout_ms([value](const std::string&) { return value; });
    };
    EXPECT_EQ(with(std::nullopt), 300'000);
    EXPECT_EQ(with(""), 300'000);
    EXPECT_EQ(with("1"), 1);
    EXPECT_EQ(with("86400000"), 86'400'000);
    for (const char* bad : {"0", "-1", "1.5", "10s", " 1", "99999999999999999999"})
        testing::expect_error(DDP_ERROR_INVALID_ARGUMENT, {"DDP_TIMEOUT_MS", bad},
                              [&] { with(bad); });
}

TEST(Environment, ElasticJobs) {
    const auto with = [](const char* name, const char* value) {
        return elastic_environment([=](const std::string& asked) -> std::optional<std::string> {
            if (asked != name) return std::nullopt;
            return value;
        });
    };
    EXPECT_EQ(with("", "").min_world, 0);
    EXPECT_EQ(with("DDP_ELASTIC_MIN_WORLD", "").min_world, 0);
    EXPECT_EQ(with("DDP_ELASTIC_MIN_WORLD", "2").min_world, 2);
    EXPECT_EQ(with("DDP_ELASTIC_MAX_WORLD", "4").max_world, 4);
    EXPECT_EQ(with("DDP_ELASTIC_FIRST_WORLD", "6").first_world, 6);
    for (const char* name :
         {"DDP_ELASTIC_MIN_WORLD", "DDP_ELASTIC_MAX_WORLD", "DDP_ELASTIC_FIRST_WORLD"})
        for (const char* bad : {"0", "-1", "two", "2147483648"})
            testing::expect_error(DDP_ERROR_INVALID_ARGUMENT, {name, bad},
                                  [&] { with(name, bad); });
}

TEST(Environment, EveryMistakeNamesItsVariable) {
    for (const auto& item : kWrong) {
        SCOPED_TRACE(item.title);
        testing::expect_error(item.code, item.says, [&] { discover(item.variables); });
    }
}

TEST(Environment, TheLauncherTellsJobsApart) {
    const auto id = [](const char* mark, Variables variables) {
        variables[mark] = "0";
        variables.insert({{"WORLD_SIZE", "2"}, {"RANK", "0"}, {"DDP_STORE", "tcp://h:1"}});
        return discover(variables).id;
    };
    EXPECT_EQ(id("RANK", {}), "");
    EXPECT_EQ(id("DDP_RANK",
                 {{"DDP_WORLD_SIZE", "2"}, {"TORCHELASTIC_RUN_ID", "7"}, {"SLURM_JOB_ID", "1"}}),
              "");
    EXPECT_EQ(id("RANK", {{"TORCHELASTIC_RUN_ID", "7"}, {"SLURM_JOB_ID", "1"}}),
              "TORCHELASTIC_RUN_ID=7\n");
    EXPECT_EQ(id("SLURM_PROCID",
                 {{"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_JOB_ID", "1"}, {"SLURM_STEP_ID", "3"}}),
              "SLURM_JOB_ID=1\nSLURM_STEP_ID=3\n");
    EXPECT_EQ(id("OMPI_COMM_WORLD_RANK",
                 {{"OMPI_COMM_WORLD_SIZE", "2"}, {"PMIX_NAMESPACE", "5"}, {"SLURM_JOB_ID", "1"}}),
              "PMIX_NAMESPACE=5\n");
}

TEST(Environment, AJobThatIsSmallerThanTheOneAroundItSaysSo) {
    Variables variables = {{"TORCHELASTIC_RUN_ID", "x"}, {"RANK", "0"},
                           {"WORLD_SIZE", "2"},          {"SLURM_STEP_NUM_TASKS", "4"},
                           {"SLURM_PROCID", "3"},        {"MASTER_ADDR", "h"},
                           {"MASTER_PORT", "29500"},     {"SLURM_NTASKS", "4"}};
    const std::string doubt = discover(variables).doubt;
    for (const char* part :
         {"'torchrun'", "2 rank(s)", "4 tasks of 'slurm'", "SLURM_STEP_NUM_TASKS"})
        EXPECT_NE(doubt.find(part), std::string::npos) << doubt;
    variables["WORLD_SIZE"] = "4";
    EXPECT_EQ(discover(variables).doubt, "");
    // The variables of an allocation whose ranks have not been started.
    variables = {{"DDP_RANK", "0"},
                 {"DDP_WORLD_SIZE", "2"},
                 {"DDP_STORE", "tcp://h:1"},
                 {"SLURM_NTASKS", "4"},
                 {"SLURM_PROCID", "0"}};
    EXPECT_EQ(discover(variables).doubt, "");
    variables["OMPI_COMM_WORLD_SIZE"] = "4";
    EXPECT_NE(discover(variables).doubt.find("OMPI_COMM_WORLD_SIZE"), std::string::npos);
}

TEST(Environment, HostedByTheLauncherAndRestarted) {
    Variables variables = {{"DDP_RANK", "0"},
                           {"DDP_WORLD_SIZE", "1"},
                           {"DDP_STORE", "tcp://h:1"},
                           {"DDP_STORE_HOSTED", "launcher"},
                           {"DDP_RESTART", "3"}};
    JobEnvironment job = discover(variables);
    EXPECT_FALSE(job.rank0_hosts_store);
    EXPECT_EQ(job.restart, 3);
    variables["DDP_STORE_HOSTED"] = "rank0";
    EXPECT_TRUE(discover(variables).rank0_hosts_store);
}

TEST(Environment, DerivedPortsAgreeInAJobAndDifferBetweenJobs) {
    Variables one = {{"SLURM_PROCID", "0"},
                     {"SLURM_STEP_NUM_TASKS", "2"},
                     {"SLURM_JOB_NODELIST", "a,b"},
                     {"SLURM_JOB_ID", "100"}};
    Variables same = one;
    same["SLURM_PROCID"] = "1";
    Variables other = one;
    other["SLURM_JOB_ID"] = "101";
    EXPECT_EQ(discover(one).store_uri, discover(same).store_uri);
    EXPECT_NE(discover(one).store_uri, discover(other).store_uri);
}

TEST(Environment, TheProcessEnvironment) {
    EXPECT_TRUE(process_env("PATH"));
    EXPECT_FALSE(process_env("DDP_THIS_IS_NOT_SET"));
}

}  // namespace
}  // namespace libddp
