package org.libddp;

/** Called by {@link Context#setReducedFunction} when a gradient is final. */
@FunctionalInterface
public interface ReducedFunction {
    /**
     * Uses a final gradient, on the thread that waits for it. It may update the parameter.
     *
     * @param parameter the gradient's parameter
     * @param used false if no rank used the parameter; its gradient is then untouched
     * @throws Exception if it fails: the waiting call throws the exception again, and the context
     *     breaks on every rank
     */
    void reduced(Parameter parameter, boolean used) throws Exception;
}
