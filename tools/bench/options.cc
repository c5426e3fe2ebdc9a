#include "options.h"

#include <ddp/status.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <iostream>

#include "predict/network.h"
#include "util/text.h"
#include "write_text.h"

namespace bench {
namespace {

std::string check_iterations(const std::string& text) {
    if (text == "auto") return {};
    return CLI::Range(1, 1000000)(text);
}

void add_output_options(CLI::App* command, Options& options) {
    command->add_flag("--json", options.json, "One JSON object a line instead of a table");
    command->add_option("--csv", options.csv, "Also write the rows to this file, comma-separated");
}

void add_row_options(CLI::App* command, Options& options) {
    command
        ->add_option("--iters", options.iters,
                     "Iterations to time: a number, or auto for at least 10 in --seconds")
        ->check(CLI::Validator(check_iterations, "auto|N"))
        ->capture_default_str();
    add_output_options(command, options);
}

void add_bucket_option(CLI::App* command, Options& options) {
    command->add_option("--bucket-mb", options.bucket_mb, "Bucket size in MiB")
        ->check(CLI::Range(1e-6, 65536.0))
        ->capture_default_str();
}

void add_first_bucket_option(CLI::App* command, Options& options) {
    command
        ->add_option("--first-bucket-mb", options.first_bucket_mb,
                     "Size of the first bucket in MiB")
        ->check(CLI::Range(1e-6, 65536.0))
        ->capture_default_str();
}

void add_groups_option(CLI::App* command, Options& options) {
    command
        ->add_option("--groups", options.groups, "Groups that take turns (ddp_group_round_robin)")
        ->check(CLI::Range(1, 64))
        ->capture_default_str();
}

void add_job_options(CLI::App* command, Options& options) {
    command
        ->add_option("--world", options.world,
                     "Ranks to start on this host; a launcher's own number wins")
        ->check(CLI::Range(1, 1024))
        ->capture_default_str();
    command
        ->add_option("--backend", options.backends,
                     "As in ddp_group_options; options may follow: NAME:key=value:key=value")
        ->capture_default_str();
    command->add_option("--backend-options", options.backend_options, "key=value,key=value");
    add_groups_option(command, options);
    add_row_options(command, options);
    command->add_option("--seconds", options.seconds, "How long --iters auto measures each row")
        ->check(CLI::Range(0.01, 3600.0))
        ->capture_default_str();
    command->add_option("--timeout", options.timeout, "Seconds after which all ranks are ended")
        ->check(CLI::Range(1.0, 86400.0))
        ->capture_default_str();
}

CLI::App* add_allreduce(CLI::App& app, Options& options) {
    CLI::App* command = app.add_subcommand(
        "allreduce",
        "Times ddp_allreduce, in place, for each size, cut into as many pieces as there are "
        "--groups; several backends side by side. On one host also limit_ms, what this machine "
        "needs for the memory traffic alone, and fraction = limit_ms / median_ms. tail is the 99th "
        "percentile / median_ms");
    add_job_options(command, options);
    command->get_option("--backend")
        ->delimiter(',')
        ->description("Those to compare, separated by commas: NAME or NAME:key=value:key=value");
    command
        ->add_option("--memory", options.memory,
                     "own: any memory. group: such in which the group works fastest. Or both")
        ->delimiter(',')
        ->check(CLI::IsMember({"own", "group"}))
        ->capture_default_str();
    command->add_option("--bytes", options.bytes, "Sizes, separated by commas")
        ->delimiter(',')
        ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 36))
        ->capture_default_str();
    command
        ->add_option("--pieces", options.pieces,
                     "Cut each size into so many allreduces, which are under way together. The "
                     "default is one for each of the --groups")
        ->check(CLI::Range(1, 1000000));
    command->add_option("--dtype", options.dtype, "Element type")
        ->check(CLI::IsMember({"f16", "bf16", "f32", "f64", "i32", "i64", "u8"}))
        ->capture_default_str();
    return command;
}

void add_model_option(CLI::App* command, Options& options) {
    command
        ->add_option("--model", options.model,
                     "resnet50, vgg16, bert-base, bert-large, NxM (N parameters of M floats), or a "
                     "file of lines 'name dim dim ... @uses'; uses: how often each element is "
                     "multiplied for one input, 1 if left out")
        ->capture_default_str();
}

CLI::App* add_replay(CLI::App& app, Options& options) {
    CLI::App* command = app.add_subcommand(
        "replay",
        "Writes a model's gradients in the order of a backward pass and has them averaged; beside "
        "it, in the same minute, the same loop without libddp (local_ms), on all ranks at once");
    add_job_options(command, options);
    command->get_option("--backend")->expected(1);
    add_model_option(command, options);
    add_bucket_option(command, options);
    add_first_bucket_option(command, options);
    command
        ->add_option("--compute-ms", options.compute_ms,
                     "Milliseconds of a core's time that the backward pass computes, shared out by "
                     "elements times their uses")
        ->check(CLI::Range(0.0, 60000.0))
        ->capture_default_str();
    command->add_flag("--sleep", options.sleep,
                      "The backward pass sleeps for --compute-ms and leaves its core free, as a "
                      "pass on a GPU does");
    command->add_flag("--without-overlap", options.without_overlap,
                      "Also run the loop with all gradients announced after the backward pass, in "
                      "turns with the other, and print without_overlap_ms");
    command
        ->add_option("--sync-every", options.sync_every,
                     "Also run loops that average gradients in one of N steps, for each N of this "
                     "list, separated by commas, in turns with the other, and print "
                     "sync_every_N_ms, the mean time of N steps")
        ->delimiter(',')
        ->check(CLI::Range(1, 1000));
    command->add_flag("--find-unused", options.find_unused,
                      "Also run the loop with DDP_CONTEXT_FIND_UNUSED, in turns with the other, "
                      "and print the ratio");
    command->add_flag("--votes", options.votes,
                      "Also run the loop with a vote of each rank in each step, in turns with the "
                      "other, and print the ratio");
    command->add_flag(
        "--norm", options.norm,
        "Also run the loop with the norm of all gradients (ddp_track_grad_norm), once "
        "with and once without clipping, in turns with the other, and print the "
        "ratios");
    command->add_flag("--optimizer", options.optimizer,
                      "Also run the loop with AdamW (optimizer_ms), with each rank updating its "
                      "shard after the step (sharded_ms) or in it (in_step_ms), in turns with the "
                      "other, and print the ratios to the first");
    command->add_option("--hook", options.hook,
                        "Also run the loop with this communication hook, in turns with the other, "
                        "and print the ratio");
    command->add_option("--hook-options", options.hook_options,
                        "key=value,key=value, as in ddp_use_hook");
    command
        ->add_option(
            "--device", options.device,
            "cpu, cuda or cuda:N: where gradients lie; ranks take the GPUs from N on in turn. On a "
            "GPU: --compute-ms is about its time, and gradients are written again and again as "
            "long; --find-unused does not count; cpu_ms is this process's until everything is "
            "enqueued, less that of the backward pass alone, and enqueue_ms how long that takes; "
            "of both the median of rank 0's steps")
        ->capture_default_str();
    command->add_option(
        "--trace", options.trace,
        "Also run three steps in which everything is timed, by the GPU's clock where gradients are "
        "there, write rank 0's to this file for chrome://tracing or Perfetto, and print comm_ms, "
        "how long buckets were on their way in a step, and overlap, the share of that in which its "
        "backward pass ran");
    command->add_flag("--copy,!--view", options.copy,
                      "Gradients lie in the trainer's own memory (--copy), or in libddp's buckets "
                      "(--view, default)");
    // These options print a row for each bucket size.
    for (CLI::Option* option :
         {command
              ->add_option("--also-mb", options.also_mb,
                           "Also run the loop with these bucket sizes in MiB, in turns with the "
                           "other: a row for each")
              ->delimiter(',')
              ->check(CLI::Range(1e-6, 65536.0)),
          command->add_flag("--autotune", options.autotune,
                            "Also run the loop with DDP_CONTEXT_AUTOTUNE, which first finds a "
                            "bucket size, in turns with the others: a row")})
        for (const char* other : {"--find-unused", "--votes", "--norm", "--optimizer", "--hook",
                                  "--trace", "--device", "--without-overlap", "--sync-every"})
            option->excludes(command->get_option(other));
    return command;
}

CLI::App* add_grad_ready(CLI::App& app, Options& options) {
    CLI::App* command = app.add_subcommand(
        "grad-ready",
        "Times ddp_grad_ready alone, for gradients that live in their buckets: nanoseconds a call");
    add_job_options(command, options);
    command->get_option("--backend")->expected(1);
    command->add_option("--params", options.params, "Number of parameters")
        ->check(CLI::Range(1, 1000000))
        ->capture_default_str();
    command->add_option("--elements", options.elements, "Floats in each parameter")
        ->check(CLI::Range(1, 1 << 24))
        ->capture_default_str();
    return command;
}

CLI::App* add_join(CLI::App& app, Options& options) {
    CLI::App* command = app.add_subcommand(
        "join",
        "Times ddp_group_create once, on one host, from the last rank's call until all ranks have "
        "joined; descriptors and threads: how many more a rank then has, at most");
    add_job_options(command, options);
    for (const char* name : {"--iters", "--seconds"})
        command->remove_option(command->get_option(name));
    command->get_option("--backend")->expected(1);
    return command;
}

CLI::App* add_transfer(CLI::App& app, Options& options) {
    CLI::App* command = app.add_subcommand(
        "transfer",
        "Times how a model's gradients on a GPU, each in memory of its own, are packed into "
        "buckets and unpacked, and how hooks compress them, by the GPU's clock, in turns, after a "
        "second of such work. Numbers are random. gb_per_s counts the fewest bytes that such work "
        "can read and write; of_copy compares it with cudaMemcpyAsync on the device. It needs GPU "
        "memory for twelve times the gradients");
    command->add_option("--device", options.device, "cuda or cuda:N")->default_str("cuda");
    add_model_option(command, options);
    add_bucket_option(command, options);
    add_row_options(command, options);
    return command;
}

void add_advise_option(CLI::App* command, Options& options) {
    command->add_flag("--advise", options.advise,
                      "Search for settings: bucket_cap_bytes, first_bucket_cap_bytes and "
                      "round_robin, then hooks. Says which to set and what each saves. Prints one "
                      "row for each try, all at --world");
    command->parse_complete_callback([command, &options] {
        if (!options.advise) return;
        for (const char* name : {"--bucket-mb", "--first-bucket-mb", "--groups", "--hook"})
            if (command->count(name) > 0)
                throw CLI::ValidationError(name, "--advise chooses it. Leave out one of them");
        if (options.schedules.size() > 1)
            throw CLI::ValidationError("--schedule", "--advise is for one. Name only one");
        if (options.piece_mbs.size() > 1)
            throw CLI::ValidationError("--piece-mb", "--advise is for one. Name only one");
    });
}

CLI::App* add_predict(CLI::App& app, Options& options) {
    CLI::App* command = app.add_subcommand(
        "predict",
        "Predicts the time of a training step on a network that you describe. libddp plans the "
        "buckets and runs the hook, on this machine and on one rank, so the gradients must fit "
        "into memory. Prints one row for each bucket size at --world, then one row for each "
        "smaller power of two with the best bucket size, and says where scaling ends. exposed_ms: "
        "how much longer communication makes the step. waiting_ms: how long an average rank waits "
        "for the slowest one. efficiency: the time of a step of one rank alone, without --jitter "
        "and --straggler, divided by step_ms");
    command->add_option("--world", options.world, "Ranks")
        ->check(CLI::Range(1, 65536))
        ->capture_default_str();
    command->add_option("--ranks-a-host", options.ranks_a_host, "Ranks on each host")
        ->check(CLI::Range(1, 1024))
        ->capture_default_str();
    add_model_option(command, options);
    command
        ->add_option("--compute-ms", options.compute_ms,
                     "Milliseconds that a backward pass computes")
        ->check(CLI::Range(0.001, 1e7))
        ->required();
    command
        ->add_option(
            "--forward-ms", options.forward_ms,
            "Milliseconds that a forward pass computes; the default is half of --compute-ms")
        ->check(CLI::Range(0.0, 1e7));
    command->add_option("--optimizer-ms", options.optimizer_ms, "Milliseconds of an optimizer step")
        ->check(CLI::Range(0.0, 1e7));
    command
        ->add_option("--network", options.network,
                     network_names() +
                         ". NAME:key=value:key=value changes latency-us, message-us, host-gb-s, "
                         "local-latency-us or local-gb-s")
        ->capture_default_str();
    command->add_option("--measured", options.measured,
                        "A file with the output of `ddp-bench allreduce --json` of --world ranks, "
                        "used in place of --network. Only --world is then predicted");
    command
        ->add_option("--bucket-mb", options.bucket_mbs, "Bucket sizes in MiB, separated by commas")
        ->delimiter(',')
        ->check(CLI::Range(1e-6, 65536.0))
        ->capture_default_str();
    add_first_bucket_option(command, options);
    command
        ->add_option(
            "--schedule", options.schedules,
            "How gradients come to the next forward pass, separated by commas. finalize: it waits "
            "for all buckets. wait-param: each layer waits for its own bucket (ddp_wait_param). "
            "first-used: likewise, and buckets that the next forward pass needs first overtake "
            "others. decoupled, which libddp does not do: a reduce_scatter of each bucket, then "
            "the allgathers in the order of the forward pass")
        ->delimiter(',')
        ->check(CLI::IsMember({"finalize", "wait-param", "first-used", "decoupled"}))
        ->capture_default_str();
    command
        ->add_option("--piece-mb", options.piece_mbs,
                     "first-used: buckets go in pieces of so many MiB, which others can overtake, "
                     "separated by commas. libddp sends whole buckets: 0")
        ->delimiter(',')
        ->check(CLI::Range(0.0, 65536.0))
        ->capture_default_str();
    command
        ->add_option(
            "--agreement", options.agreement,
            "first-used: when ranks agree on the order. plan: once, in the bucket plan, for a step "
            "without jitter. piece: before each piece, which costs the latency of a barrier")
        ->check(CLI::IsMember({"plan", "piece"}))
        ->capture_default_str();
    command->add_option(
        "--save-plan", options.save_plan,
        "Write the best bucket plan to this file, for ddp_plan_adopt. With first-used it has the "
        "buckets in that order");
    command->add_option("--hook", options.hook,
                        "A communication hook. The time that it computes is not counted");
    command
        ->add_option("--hook-options", options.hook_options,
                     "key=value,key=value, as in ddp_use_hook")
        ->needs("--hook");
    add_groups_option(command, options);
    command
        ->add_option(
            "--jitter", options.jitter,
            "Standard deviation of a rank's computing time from step to step, as a share of it")
        ->check(CLI::Range(0.0, 1.0))
        ->capture_default_str();
    command
        ->add_option("--straggler", options.straggler,
                     "How much longer one rank always computes, as a share of its time")
        ->check(CLI::Range(0.0, 100.0))
        ->capture_default_str();
    command
        ->add_option("--cores", options.cores,
                     "Cores of a rank, which its backward pass and its communication share. The "
                     "backward pass uses one. 0: they share none")
        ->check(CLI::Range(0.0, 1024.0))
        ->capture_default_str();
    command
        ->add_option("--communication-cores", options.communication_cores,
                     "Cores that communication keeps busy on a rank while nothing else runs")
        ->check(CLI::Range(0.0, 1024.0))
        ->capture_default_str();
    command->get_option("--cores")->needs("--communication-cores");
    command->get_option("--communication-cores")->needs("--cores");
    add_advise_option(command, options);
    add_output_options(command, options);
    return command;
}

}  // namespace

std::int64_t Options::iterations() const {
    return iters == "auto" ? 0 : std::stoll(iters);
}

Options parse_options(int argc, const char* const* argv) {
    Options options;
    CLI::App app(
        "Measures libddp through its public interface. It starts its own ranks, unless a launcher "
        "did. predict simulates instead.\n"
        "Times are milliseconds an iteration: of each iteration the slowest rank's, of those the "
        "median.",
        "ddp-bench");
    app.set_version_flag("--version", std::string("ddp-bench ") + ddp_version());
    app.require_subcommand(1);
    const CLI::App* allreduce = add_allreduce(app, options);
    const CLI::App* replay = add_replay(app, options);
    const CLI::App* grad_ready = add_grad_ready(app, options);
    const CLI::App* joined = add_join(app, options);
    const CLI::App* transfer = add_transfer(app, options);
    CLI::App* models = app.add_subcommand(
        "models", "Prints a model's gradients in the format that --model FILE reads");
    add_model_option(models, options);
    const CLI::App* predict = add_predict(app, options);
    app.add_subcommand(
        "peers", "Runs libddp, Gloo, Open MPI and PyTorch in turns: see ddp-bench peers --help");
    if (argc > 1 && std::string(argv[1]) == "peers") {
        options.command = Command::peers;  // what follows is for its script
        return options;
    }
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        libddp::TextOut text;
        const int status = app.exit(error, text, std::cerr);
        libddp::write_output(text.str());
        std::exit(status == 0 ? 0 : 2);
    }
    if (*allreduce) options.command = Command::allreduce;
    if (*replay) options.command = Command::replay;
    if (*grad_ready) options.command = Command::grad_ready;
    if (*predict) options.command = Command::predict;
    if (*joined) options.command = Command::join;
    if (*transfer) {
        options.command = Command::transfer;
        if (options.device == "cpu") options.device = "cuda";
    }
    return options;
}

}  // namespace bench
