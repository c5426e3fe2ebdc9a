/* shard_state.h: saves and loads what each rank owns of a model and of its optimizer, by name and
 * range. Whoever loads may be another number of ranks, with other pieces:
 *
 *     for each piece (shard.h):
 *         ddp_shard_array(ctx, "value", piece.param, piece.first, piece.count, dtype, piece.value,
 *                         piece.replicated, &error);
 *         ddp_shard_array(ctx, "m", piece.param, piece.first, piece.count, DDP_F32, m,
 *                         piece.replicated, &error);
 *     ddp_shard_save(ctx, "checkpoint", "{\"step\": 100}", &error);
 *
 * and, after the same calls of ddp_shard_array, in any world:
 *
 *     ddp_shard_load(ctx, "checkpoint", &note, &error);
 *
 * A number that all owners of a parameter have, such as "step" of an optimizer (optimizer.h), is
 * element 0, replicated. One rank alone gets whole parameters: it asks for all elements of each,
 * and the other ranks for nothing.
 *
 * Each rank writes one file in the safetensors format: shard-00002-of-00004-SAVE.safetensors, with
 * tensors of one dimension that are called PARAMETER/KEY@FIRST. At the end rank 0 writes
 * shards.json, which names the save, and then removes files of other saves: until then the folder
 * holds the save before, whatever fails and whoever dies. All ranks see the same folder. It holds
 * one context's state. Checksums tell of files that have changed, not of forgery.
 *
 * No rank has a second copy of its arrays: they are written from where they are, and read to there.
 *
 * EXPERIMENTAL: arrays on devices will come.
 */
#ifndef DDP_SHARD_STATE_H
#define DDP_SHARD_STATE_H

#include "context.h"
#include "experimental.h"

DDP_EXTERN_C_BEGIN

/* Names an array for the next ddp_shard_save or ddp_shard_load, or ddp_elastic_keep_shards or
 * ddp_elastic_recall_shards (elastic.h). That forgets all of them, also if it fails, and so does
 * this call if it fails. key: such as "value" or "m"; UTF-8, without '/' and '@'. first, count:
 * which elements of the parameter. State that has fewer elements than its parameter begins at 0.
 * count 0: nothing. data: count elements in CPU memory, aligned to the dtype. They are the
 * caller's, and stay until then. replicated: ranks that name these elements have the same bits,
 * and the lowest saves them. Errors: INVALID_ARGUMENT (also for elements that were named already),
 * UNSUPPORTED (a value on a device). Threads: one. Blocks: no. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_shard_array(ddp_context* context, const char* key, ddp_param param,
                                   int64_t first, int64_t count, ddp_dtype dtype, void* data,
                                   int32_t replicated, ddp_error** error);

/* Saves the arrays of all ranks in `folder`, which is made if it is not there, in a parent that is.
 * Ranks may name different arrays, or none. Of a key and a parameter all ranks together have the
 * elements from 0 on, each once. note: text to find again, such as the step; alike on all ranks;
 * UTF-8, at most 1 MiB; NULL is "".
 *
 * DDP_OK: all ranks have written, and the system has put it on disk. An error: the folder holds the
 * save before. If rank 0 or its disk fails at the very end, it may hold the new one, which is
 * complete. Errors: IO (no room left, the folder cannot be written, or is not the same on all
 * ranks), MISMATCH (other notes; elements twice, or missing), INVALID_STATE (before ddp_commit,
 * during a step), LIMIT, or what broke the group. Threads: one. Blocks: for all ranks, and the
 * disk; a rank that is done waits for others at most the group's timeout. Collective: yes.
 * Callbacks: no. */
DDP_API ddp_status ddp_shard_save(ddp_context* context, const char* folder, const char* note,
                                  ddp_error** error);

/* Fills the arrays from the save in `folder`, on all ranks or, with the same error, on none. Names,
 * shapes, keys and dtypes are those of the save. It may hold more. *text (may be NULL): the note of
 * ddp_shard_save. The caller frees it with ddp_free. With DDP_CONTEXT_SHARD it also does what
 * ddp_publish does, and waits: all ranks have all values.
 *
 * Errors: NOT_FOUND (no complete save: names the files that are there), MISMATCH (the model has
 * another parameter, shape, key or dtype; elements that nobody saved; ranks see different saves),
 * IO (a file is missing, cut short or damaged), INVALID_STATE, LIMIT, or what broke the group.
 * After IO arrays may be old, new or both; after another error they are as before. Threads: one.
 * Blocks: as ddp_shard_save. Collective: yes. Callbacks: no. */
DDP_API ddp_status ddp_shard_load(ddp_context* context, const char* folder, char** text,
                                  ddp_error** error);

DDP_EXTERN_C_END

#endif /* DDP_SHARD_STATE_H */
