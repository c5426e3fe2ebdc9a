// ddprun: starts the ranks of a data-parallel program. docs/ddprun.md is its manual.
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <stdexcept>

#include "child.h"
#include "guard.h"
#include "launch.h"
#include "options.h"
#include "program.h"
#include "secret.h"
#include "status.h"
#include "util/error.h"
#include "util/ports.h"
#include "util/printable.h"

namespace {

// If ddprun was started with one of these closed, its first pipe would take the number and be
// mistaken for it.
void open_standard_descriptors() {
    for (int descriptor = 0; descriptor <= 2; ++descriptor) {
        if (fcntl(descriptor, F_GETFD) == -1) open("/dev/null", O_RDWR);
    }
}

// The ranks' ports are those of the store and the metrics, too.
void take_ports(const ddprun::Variables& environment) {
    for (const auto& [name, value] : environment)
        if (name == "DDP_PORTS") setenv("DDP_PORTS", value.c_str(), 1);
    try {
        libddp::allowed_ports();
    } catch (const libddp::Error& error) {
        throw std::invalid_argument(error.what());
    }
}

int launch(int argc, char** argv) {
    int status = 0;
    std::optional<ddprun::Options> options = ddprun::parse_options(argc, argv, status);
    if (!options) return status;
    if (options->status) return ddprun::show_status(*options->status, options->once);
    take_ports(options->environment);
    const ddprun::ProgramCheck program =
        ddprun::check_program_file(options->program[0], options->environment);
    if (program.status != 0) {
        std::cerr << "ddprun: " << libddp::printable(program.sentence) << '\n';
        return program.status;
    }
    ddprun::Secret secret = ddprun::job_secret(*options);
    const bool dry_run = options->dry_run;
    ddprun::Launch launch(std::move(*options), std::move(secret));
    return dry_run ? launch.show() : launch.run();
}

}  // namespace

int main(int argc, char** argv) {
    if (ddprun::is_child_mode(argc, argv)) return ddprun::run_child(argc, argv);
    if (ddprun::is_guard_mode(argc, argv)) return ddprun::run_guard();
    open_standard_descriptors();
    try {
        return launch(argc, argv);
    } catch (const std::invalid_argument& error) {
        std::cerr << "ddprun: " << libddp::printable(error.what(), "\n") << '\n';
        return ddprun::kUsageError;
    } catch (const std::exception& error) {
        std::cerr << "ddprun: " << libddp::printable(error.what(), "\n") << '\n';
        return ddprun::kLauncherError;
    }
}
