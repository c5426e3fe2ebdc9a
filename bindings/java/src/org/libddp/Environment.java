package org.libddp;

import java.util.Optional;

/**
 * The facts that a launcher told this process.
 *
 * @param rank this process's rank
 * @param worldSize the number of ranks
 * @param localRank this process's rank among those on this machine, to choose a device
 * @param localWorldSize the number of ranks on this machine
 * @param restart how often the job was restarted
 * @param launcher "ddprun", "torchrun", "openmpi", "pmi", "slurm", "kubernetes" or "variables"
 */
public record Environment(
        int rank, int worldSize, int localRank, int localWorldSize, long restart, String launcher) {
    /** {@return what the launcher told this process; empty without a launcher} */
    public static Optional<Environment> get() {
        try (ddp_environment told = new ddp_environment()) {
            ddp.ddp_environment_get(told);
            return Optional.of(
                    new Environment(told.getRank(), told.getWorld_size(), told.getLocal_rank(),
                            told.getLocal_world_size(), told.getRestart(), told.getLauncher()));
        } catch (DdpException.NotFound e) {
            return Optional.empty();
        }
    }
}
