package org.libddp;

/**
 * An error of libddp: a sentence, and the facts that it names. There is a class for each status.
 *
 * <p>Instead of it, the use of a closed object throws {@link IllegalStateException}, and an
 * argument that Java itself can reject throws {@link IllegalArgumentException}.
 */
public class DdpException extends RuntimeException {
    private static final long serialVersionUID = 1;

    private final int status;
    private final int rank;
    private final int param;
    private final int bucket;
    private final long step;

    DdpException(Facts facts) {
        super(facts.message);
        status = facts.status;
        rank = facts.rank;
        param = facts.param;
        bucket = facts.bucket;
        step = facts.step;
    }

    /** {@return the value of the constant DDP_ERROR_... in ddp/status.h} */
    public int status() {
        return status;
    }

    /** {@return the rank that caused it; -1 if it is not known} */
    public int rank() {
        return rank;
    }

    /** {@return the index of the parameter that it is about; -1 if there is none} */
    public int param() {
        return param;
    }

    /** {@return the index of the bucket that it is about; -1 if there is none} */
    public int bucket() {
        return bucket;
    }

    /** {@return the step in which it happened, from 0; -1 if it did not happen in one} */
    public long step() {
        return step;
    }

    /** An argument is out of range, or of the wrong type. */
    public static final class InvalidArgument extends DdpException {
        private static final long serialVersionUID = 1;

        InvalidArgument(Facts facts) {
            super(facts);
        }
    }

    /** The call is not allowed now; the message says when it is. */
    public static final class InvalidState extends DdpException {
        private static final long serialVersionUID = 1;

        InvalidState(Facts facts) {
            super(facts);
        }
    }

    /** No such backend or module, or no launcher. */
    public static final class NotFound extends DdpException {
        private static final long serialVersionUID = 1;

        NotFound(Facts facts) {
            super(facts);
        }
    }

    /** The name or the rank is taken. */
    public static final class AlreadyExists extends DdpException {
        private static final long serialVersionUID = 1;

        AlreadyExists(Facts facts) {
            super(facts);
        }
    }

    /** Understood, but this build, backend or version cannot do it. */
    public static final class Unsupported extends DdpException {
        private static final long serialVersionUID = 1;

        Unsupported(Facts facts) {
            super(facts);
        }
    }

    /** An allocation failed. */
    public static final class OutOfMemory extends DdpException {
        private static final long serialVersionUID = 1;

        OutOfMemory(Facts facts) {
            super(facts);
        }
    }

    /** The stated time passed; the message names the ranks that did not come. */
    public static final class Timeout extends DdpException {
        private static final long serialVersionUID = 1;

        Timeout(Facts facts) {
            super(facts);
        }
    }

    /** The store or a peer cannot be reached. */
    public static final class Unavailable extends DdpException {
        private static final long serialVersionUID = 1;

        Unavailable(Facts facts) {
            super(facts);
        }
    }

    /** The job secret is wrong or missing, or the system refused a resource. */
    public static final class PermissionDenied extends DdpException {
        private static final long serialVersionUID = 1;

        PermissionDenied(Facts facts) {
            super(facts);
        }
    }

    /** A rank died or left; {@link #rank} says which. */
    public static final class RankFailed extends DdpException {
        private static final long serialVersionUID = 1;

        RankFailed(Facts facts) {
            super(facts);
        }
    }

    /** Ranks disagree: about parameters, the plan, or the order or size of a collective. */
    public static final class Mismatch extends DdpException {
        private static final long serialVersionUID = 1;

        Mismatch(Facts facts) {
            super(facts);
        }
    }

    /** {@link Group#abort} or {@link Context#abort} was called. */
    public static final class Aborted extends DdpException {
        private static final long serialVersionUID = 1;

        Aborted(Facts facts) {
            super(facts);
        }
    }

    /** A gradient never became ready; {@link #param} says which. */
    public static final class MissingGradient extends DdpException {
        private static final long serialVersionUID = 1;

        MissingGradient(Facts facts) {
            super(facts);
        }
    }

    /** A hook or continuation failed; here, or on another rank. */
    public static final class CallbackFailed extends DdpException {
        private static final long serialVersionUID = 1;

        CallbackFailed(Facts facts) {
            super(facts);
        }
    }

    /** A file or socket operation failed. */
    public static final class IoFailed extends DdpException {
        private static final long serialVersionUID = 1;

        IoFailed(Facts facts) {
            super(facts);
        }
    }

    /** A documented limit was exceeded. */
    public static final class Limit extends DdpException {
        private static final long serialVersionUID = 1;

        Limit(Facts facts) {
            super(facts);
        }
    }

    /** A defect in libddp: please report the message. */
    public static final class Internal extends DdpException {
        private static final long serialVersionUID = 1;

        Internal(Facts facts) {
            super(facts);
        }
    }

    /** A rank has no more inputs, and the context was told to stop then. */
    public static final class UnevenInputs extends DdpException {
        private static final long serialVersionUID = 1;

        UnevenInputs(Facts facts) {
            super(facts);
        }
    }

    /**
     * The program of a rank ended its wait, with {@link Thread#interrupt} or Ctrl-C. {@link #rank}
     * names the rank. The interrupted thread stays interrupted.
     */
    public static final class Interrupted extends DdpException {
        private static final long serialVersionUID = 1;

        Interrupted(Facts facts) {
            super(facts);
        }
    }

    /**
     * A gradient, or a result, holds NaN or infinity. With {@link ContextOptions#skipNonfinite} all
     * ranks have skipped the step, and the context goes on.
     */
    public static final class Nonfinite extends DdpException {
        private static final long serialVersionUID = 1;

        Nonfinite(Facts facts) {
            super(facts);
        }
    }

    /** The facts of an error of libddp's. */
    static final class Facts {
        private final int status;
        private final String message;
        private final int rank;
        private final int param;
        private final int bucket;
        private final long step;

        Facts(int status, String message, int rank, int param, int bucket, long step) {
            this.status = status;
            this.message = message;
            this.rank = rank;
            this.param = param;
            this.bucket = bucket;
            this.step = step;
        }
    }

    /** The exception for C to throw. */
    static DdpException make(
            int status, byte[] message, int rank, int param, int bucket, long step) {
        Facts facts = new Facts(status, Words.inJava(Text.of(message)), rank, param, bucket, step);
        switch (status) {
            case -1:
                return new InvalidArgument(facts);
            case -2:
                return new InvalidState(facts);
            case -3:
                return new NotFound(facts);
            case -4:
                return new AlreadyExists(facts);
            case -5:
                return new Unsupported(facts);
            case -6:
                return new OutOfMemory(facts);
            case -7:
                return new Timeout(facts);
            case -8:
                return new Unavailable(facts);
            case -9:
                return new PermissionDenied(facts);
            case -10:
                return new RankFailed(facts);
            case -11:
                return new Mismatch(facts);
            case -12:
                return new Aborted(facts);
            case -13:
                return new MissingGradient(facts);
            case -14:
                return new CallbackFailed(facts);
            case -15:
                return new IoFailed(facts);
            case -16:
                return new Limit(facts);
            case -17:
                return new Internal(facts);
            case -18:
                return new UnevenInputs(facts);
            case -19:
                return new Interrupted(facts);
            case -20:
                return new Nonfinite(facts);
            default:
                return new DdpException(facts);
        }
    }

    /** An error of the binding's own. */
    static DdpException unsupported(String message) {
        return new Unsupported(new Facts(-5, message, -1, -1, -1, -1));
    }
}
