/* handles.i: the opaque types. ddp_handle(TYPE, FREE) of the language's file gives it typemaps for TYPE* (an argument),
 * const TYPE* (the same) and TYPE** (a result that the caller owns and FREE lets go of). FREE itself stays callable, at
 * most once a handle.
 */
ddp_handle(ddp_store, ddp_store_free)
ddp_handle(ddp_group, ddp_group_free)
ddp_handle(ddp_work, ddp_work_free)
ddp_handle(ddp_context, ddp_context_free)
ddp_handle(ddp_layout, ddp_layout_free)
ddp_handle(ddp_averager, ddp_averager_free)
ddp_handle(ddp_optimizer, ddp_optimizer_free)
ddp_handle(ddp_elastic, ddp_elastic_free)
ddp_handle(ddp_error, ddp_error_free)
/* Borrowed: given to a hook, never to be freed. */
ddp_borrowed_handle(ddp_bucket)
