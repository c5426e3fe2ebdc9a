package org.libddp;

/** What {@link Context#setReducedFunction} calls when a gradient is final. */
@FunctionalInterface
public interface ReducedFunction {
    /** used: false if no rank used the parameter, whose gradient is untouched then. */
    void reduced(Parameter parameter, boolean used) throws Exception;
}
