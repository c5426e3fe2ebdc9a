package ddp

import (
	"regexp"
	"strings"
)

// words has the functions of C, and those that call them here. A function that is not here keeps its name.
var words = map[string]string{
	"ddp_all_to_all":             "AllToAll",
	"ddp_all_to_allv":            "AllToAllV",
	"ddp_allgather":              "AllGather",
	"ddp_allreduce":              "AllReduce",
	"ddp_backend_available":      "BackendAvailable",
	"ddp_barrier":                "Group.Barrier",
	"ddp_batch_share":            "Context.BatchShare",
	"ddp_broadcast":              "Broadcast",
	"ddp_bucket_buffer":          "Elements",
	"ddp_bucket_count":           "Elements",
	"ddp_bucket_device":          "Elements",
	"ddp_bucket_dtype":           "Elements",
	"ddp_bucket_index":           "Bucket.Index",
	"ddp_bucket_is_last":         "Bucket.IsLast",
	"ddp_bucket_op":              "Bucket.Op",
	"ddp_clip_factor":            "Context.ClipFactor",
	"ddp_clip_grad_norm":         "Context.ClipGradNorm",
	"ddp_commit":                 "Context.Commit",
	"ddp_compress_hook":          "CompressHook",
	"ddp_context_abort":          "Context.Abort",
	"ddp_context_create":         "NewContext",
	"ddp_context_set_group":      "Context.SetGroup",
	"ddp_elastic_add_context":    "Elastic.AddContext",
	"ddp_elastic_add_state":      "AddState",
	"ddp_elastic_announce_leave": "Elastic.AnnounceLeave",
	"ddp_elastic_begin":          "Elastic.Begin",
	"ddp_elastic_commit":         "Elastic.Commit",
	"ddp_elastic_confirm_member": "Elastic.ConfirmMember",
	"ddp_elastic_create":         "NewElastic",
	"ddp_elastic_group":          "Elastic.Group",
	"ddp_elastic_leave":          "Elastic.Leave",
	"ddp_elastic_set_step":       "Elastic.SetStep",
	"ddp_environment_get":        "GetEnvironment",
	"ddp_finalize":               "Context.Finalize",
	"ddp_grad_norm":              "Context.GradNorm",
	"ddp_grad_ready":             "Context.GradReady",
	"ddp_grad_view":              "View",
	"ddp_group_abort":            "Group.Abort",
	"ddp_group_backend":          "Group.Backend",
	"ddp_group_create":           "NewGroup",
	"ddp_group_rank":             "Group.Rank",
	"ddp_group_round_robin":      "RoundRobin",
	"ddp_group_split":            "Group.Split",
	"ddp_group_status":           "Group.Status",
	"ddp_group_store":            "Group.Store",
	"ddp_group_world_size":       "Group.WorldSize",
	"ddp_hook_name":              "Context.HookName",
	"ddp_hook_state_load":        "Context.LoadHookState",
	"ddp_hook_state_save":        "Context.HookState",
	"ddp_join":                   "Context.Join",
	"ddp_mark_begin":             "Mark",
	"ddp_mark_end":               "Mark",
	"ddp_mark_unused":            "Context.MarkUnused",
	"ddp_optimizer_create":       "NewOptimizer",
	"ddp_optimizer_set":          "Optimizer.Set",
	"ddp_optimizer_step":         "Optimizer.Step",
	"ddp_param_used":             "Context.ParamUsed",
	"ddp_piece_count":            "Context.Pieces",
	"ddp_piece_get":              "Context.Pieces",
	"ddp_plan_adopt":             "Context.AdoptPlan",
	"ddp_plan_save":              "Context.Plan",
	"ddp_publish":                "Context.Publish",
	"ddp_put":                    "Put",
	"ddp_reduce_scatter":         "ReduceScatter",
	"ddp_register_buffer":        "RegisterBuffer",
	"ddp_register_param":         "Register",
	"ddp_set_blame_signal":       "SetBlameSignal",
	"ddp_set_comm_hook":          "Context.SetHook",
	"ddp_set_frozen":             "Context.SetFrozen",
	"ddp_set_interrupt_check":    "Interrupt",
	"ddp_set_owner":              "Context.SetOwner",
	"ddp_set_sync":               "Context.SetSync",
	"ddp_set_weight":             "Context.SetWeight",
	"ddp_set_workload":           "SetWorkload",
	"ddp_shard_range":            "ShardRange",
	"ddp_share_batch":            "Context.ShareBatch",
	"ddp_skip_params":            "Context.SkipParams",
	"ddp_skipped":                "Context.Skipped",
	"ddp_step_begin":             "Context.StepBegin",
	"ddp_step_discard":           "Context.Discard",
	"ddp_step_vote":              "Context.Vote",
	"ddp_step_vote_level":        "Context.VoteLevel",
	"ddp_step_votes":             "Context.Votes",
	"ddp_store_add":              "Store.Add",
	"ddp_store_check":            "Store.Check",
	"ddp_store_compare_set":      "Store.CompareSet",
	"ddp_store_create":           "OpenStore",
	"ddp_store_delete":           "Store.Delete",
	"ddp_store_get":              "Store.Get",
	"ddp_store_list_keys":        "Store.Keys",
	"ddp_store_port":             "Store.Port",
	"ddp_store_set":              "Store.Set",
	"ddp_store_wait":             "Store.Wait",
	"ddp_track_grad_norm":        "Context.TrackGradNorm",
	"ddp_use_hook":               "Context.UseHook",
	"ddp_version":                "Version",
	"ddp_wait_value":             "Context.WaitValue",
	"ddp_work_test":              "Work.Wait",
	"ddp_work_wait":              "Work.Wait",
}

var (
	name  = regexp.MustCompile(`\b(?:ddp|DDP)_\w+`)
	field = regexp.MustCompile(`\b(?:options|desc|group)->`)
	flag  = regexp.MustCompile(`^DDP_(?:CONTEXT|GROUP|REDUCTION|PARAM)_(\w+)$`)
)

// inGo is a message with Go's names. Environment variables keep theirs.
func inGo(message string) string {
	return name.ReplaceAllStringFunc(field.ReplaceAllString(message, ""), func(found string) string {
		if word, known := words[found]; known {
			return word
		}
		if found == "DDP_PUT_ADD" {
			return "PutAdd"
		}
		if parts := flag.FindStringSubmatch(found); parts != nil {
			word := ""
			for _, part := range strings.Split(parts[1], "_") {
				word += part[:1] + strings.ToLower(part[1:])
			}
			return word
		}
		return found
	})
}
