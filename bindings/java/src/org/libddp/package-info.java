/**
 * libddp: data-parallel training for everyone who is not PyTorch.
 *
 * <p>{@link org.libddp.Group} joins the ranks of a job, and {@link org.libddp.Context} averages the
 * gradients of a model over them: register parameters, commit, and in each step announce gradients
 * and finalize. Numbers are in direct buffers, which libddp uses in place. docs/java.md in the
 * source tree has a complete trainer and the reference.
 *
 * <p>In the comments, "Collective" means that every rank of the group calls the method, in the same
 * order. What libddp reports is a {@link org.libddp.DdpException}, which is unchecked. Counts and
 * extents are in elements where nothing says bytes.
 *
 * @serial exclude
 */
package org.libddp;
