package org.libddp;

/** What {@link Context#setReducedFunction} calls when a gradient is final. */
@FunctionalInterface
public interface ReducedFunction {
    /** used: false if no rank used the parameter; its gradient is then untouched. */
    void reduced(Parameter parameter, boolean used) throws Exception;
}
