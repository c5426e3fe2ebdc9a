/**
 * libddp: data-parallel training for everyone who is not PyTorch.
 *
 * <p>{@link org.libddp.Group} joins the ranks of a job, and {@link org.libddp.Context} averages the gradients of a model over them:
 * register parameters, commit, and in each step announce gradients and finalize. Numbers are in direct buffers, which
 * libddp uses in place. docs/java.md in the source tree has a complete trainer and the reference.
 */
package org.libddp;
