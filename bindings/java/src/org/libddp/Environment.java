package org.libddp;

import java.util.Optional;

/** What a launcher told this process. */
public record Environment(int rank, int worldSize, int localRank, int localWorldSize, long restart, String launcher) {
    /** Empty without a launcher. */
    public static Optional<Environment> get() {
        try (ddp_environment told = new ddp_environment()) {
            ddp.ddp_environment_get(told);
            return Optional.of(new Environment(told.getRank(), told.getWorld_size(), told.getLocal_rank(),
                    told.getLocal_world_size(), told.getRestart(), told.getLauncher()));
        } catch (DdpException.NotFound e) {
            return Optional.empty();
        }
    }
}
