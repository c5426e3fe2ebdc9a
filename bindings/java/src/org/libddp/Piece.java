package org.libddp;

/**
 * Elements of a parameter that this rank owns, with {@link ContextOptions#shard}.
 *
 * @param parameter the parameter
 * @param first how many of its elements come before them
 * @param count the number of elements
 * @param replicated whether all ranks own them
 * @param value the elements, in the registered data
 * @param gradient their gradient, in the registered grad or in a bucket: the mean, after
 *     finalizeStep
 */
public record Piece(Parameter parameter, long first, long count, boolean replicated, Memory value,
        Memory gradient) {}
