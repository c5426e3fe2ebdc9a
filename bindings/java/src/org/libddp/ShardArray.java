package org.libddp;

/**
 * Numbers for elements of a parameter, which {@link Context#saveShards} and {@link
 * Context#loadShards} take: values, or an optimizer's state.
 *
 * @param key the kind of the numbers, such as "value" or "exp_avg"; without '/' and '@'
 * @param parameter a parameter of the context
 * @param first how many of its elements come before them
 * @param replicated whether all ranks that give these elements have the same bits
 * @param data the numbers, in memory of the CPU
 */
public record ShardArray(
        String key, Parameter parameter, long first, boolean replicated, Memory data) {
    /**
     * {@return numbers for the elements of a piece}
     *
     * @param key the kind of the numbers, such as "value"
     * @param piece of {@link Context#pieces}
     * @param data one number for each element, such as {@link Piece#value}
     */
    public static ShardArray of(String key, Piece piece, Memory data) {
        data.counted(key + " of " + piece.parameter().name(), piece.count());
        return new ShardArray(key, piece.parameter(), piece.first(), piece.replicated(), data);
    }

    /**
     * {@return numbers for all elements of a parameter, alike on all ranks that give them}
     *
     * @param key the kind of the numbers, such as "value"
     * @param parameter a parameter of the context
     * @param data one number for each element, such as {@link Parameter#data}
     */
    public static ShardArray of(String key, Parameter parameter, Memory data) {
        return new ShardArray(key, parameter, 0, true, data);
    }
}
