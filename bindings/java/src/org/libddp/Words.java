package org.libddp;

import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** libddp's messages in Java's words: they name functions and constants of C. SWIG's class {@code
 * ddp} has every such name. */
final class Words {
    private static final Pattern NAME = Pattern.compile("\\b(?:ddp|DDP)_\\w+(?:\\(\\))?");
    private static final Pattern FIELD =
            Pattern.compile("\\b(?:options|desc|group)->(?:flags: )?(\\w+)");
    private static final Pattern HOOK = Pattern.compile("ddp_use_([a-z0-9]+)");

    /** Classes whose methods have the names of functions: {@code ddp_store_add} is {@code
     * Store.add}. */
    private static final Map<String, Class<?>> CLASSES = Map.of("group", Group.class, "context",
            Context.class, "store", Store.class, "work", Work.class, "averager", Averager.class,
            "elastic", Elastic.class, "bucket", Bucket.class, "step", Context.class, "set",
            Context.class, "environment", Environment.class);

    /** And those that have {@code ddp_grad_ready} without a part of its name. */
    private static final List<Class<?>> OTHER_CLASSES =
            List.of(Context.class, Group.class, Ddp.class, Mark.class, Device.class);

    /** Functions of C whose methods have other names. */
    static final Map<String, String> OTHER = others();

    private static final Map<String, String> OTHER_FLAGS = Map.of("DDP_CONTEXT_NO_BUFFER_BROADCAST",
            "broadcastBuffers(false)", "DDP_PUT_ADD", "add", "DDP_HOOK_STATE_SHARED_ONLY",
            "sharedOnly", "DDP_DEVICE_CPU", "the CPU", "DDP_DEVICE_CUDA", "CUDA");

    private static Set<String> names;

    private Words() {}

    /** The message with Java's names. Environment variables keep theirs. */
    static String inJava(String message) {
        if (message == null) return null;
        String fields = FIELD.matcher(message).replaceAll(found
                -> Matcher.quoteReplacement(found.group(1).startsWith("DDP_")
                                ? found.group(1)
                                : camel(found.group(1))));
        return NAME.matcher(fields).replaceAll(
                found -> Matcher.quoteReplacement(word(found.group())));
    }

    private static String word(String found) {
        String name = found.endsWith("()") ? found.substring(0, found.length() - 2) : found;
        if (!names().contains(name)) return found;
        return name.startsWith("ddp_") ? function(name) : constant(name);
    }

    /** {@return "Context.gradReady" for ddp_grad_ready} */
    private static String function(String name) {
        if (OTHER.containsKey(name)) return OTHER.get(name);
        String bare = name.substring(4);
        int end = bare.indexOf('_');
        Class<?> owner = end < 0 ? null : CLASSES.get(bare.substring(0, end));
        String rest = end < 0 ? bare : bare.substring(end + 1);
        if (name.endsWith("_options_init_sized"))
            return pascal(bare.substring(0, bare.length() - "_init_sized".length()));
        if (owner != null && rest.equals("create")) return owner.getSimpleName();
        if (owner != null && rest.equals("free")) return owner.getSimpleName() + ".close";
        if (owner != null && has(owner, camel(rest)))
            return owner.getSimpleName() + "." + camel(rest);
        for (Class<?> each : OTHER_CLASSES) {
            if (has(each, camel(bare))) return each.getSimpleName() + "." + camel(bare);
        }
        Matcher hook = HOOK.matcher(name);
        return hook.matches() ? "Context.useHook(\"" + hook.group(1) + "\")" : camel(bare);
    }

    /** {@return "join(true)" for DDP_CONTEXT_JOIN} */
    private static String constant(String name) {
        if (OTHER_FLAGS.containsKey(name)) return OTHER_FLAGS.get(name);
        for (String prefix : List.of("DDP_CONTEXT_", "DDP_GROUP_", "DDP_STORE_", "DDP_PARAM_")) {
            if (!name.startsWith(prefix)) continue;
            String flag = name.substring(prefix.length());
            boolean no = flag.startsWith("NO_");
            String option = camel(flag.substring(no ? 3 : 0).toLowerCase(Locale.ROOT));
            return option + (prefix.equals("DDP_PARAM_") ? "()" : no ? "(false)" : "(true)");
        }
        if (name.startsWith("DDP_REDUCTION_")) return "Reduction." + name.substring(14);
        if (name.startsWith("DDP_OWNER_")) return "Owner." + name.substring(10);
        if (name.startsWith("DDP_KEEP_")) return "Keep." + name.substring(9);
        if (name.startsWith("DDP_OUTER_")) return "Averager.Outer." + name.substring(10);
        if (name.startsWith("DDP_ERROR_")) return error(name);
        return name.substring(4);
    }

    /** {@return "DdpException.Timeout" for DDP_ERROR_TIMEOUT} */
    private static String error(String name) {
        try {
            int status = ddpConstants.class.getField(name).getInt(null);
            return "DdpException."
                    + DdpException.make(status, new byte[0], -1, -1, -1, -1)
                              .getClass()
                              .getSimpleName();
        } catch (ReflectiveOperationException e) {
            return name;
        }
    }

    static String camel(String name) {
        StringBuilder made = new StringBuilder();
        for (String part : name.split("_")) {
            if (part.isEmpty()) continue;
            made.append(made.length() == 0 ? part.substring(0, 1)
                                           : part.substring(0, 1).toUpperCase(Locale.ROOT));
            made.append(part.substring(1));
        }
        return made.toString();
    }

    private static String pascal(String name) {
        String made = camel(name);
        return made.substring(0, 1).toUpperCase(Locale.ROOT) + made.substring(1);
    }

    private static boolean has(Class<?> owner, String method) {
        return Arrays.stream(owner.getMethods()).anyMatch(each -> each.getName().equals(method));
    }

    /** {@return every name of C that SWIG's classes have} */
    static synchronized Set<String> names() {
        if (names != null) return names;
        Set<String> found = new HashSet<>();
        for (Method each : ddp.class.getDeclaredMethods()) found.add(each.getName());
        for (Field each : ddpConstants.class.getFields()) found.add(each.getName());
        found.removeIf(each -> each.startsWith("ddp_java_") || !NAME.matcher(each).matches());
        names = found;
        return found;
    }

    private static Map<String, String> others() {
        Map<String, String> made = new HashMap<>();
        String[] pairs = {"all_to_allv", "Group.allToAll", "finalize", "Context.finalizeStep",
                "wait_param", "Context.awaitParameter", "wait_param_on", "Context.awaitParameterOn",
                "param_used", "Context.isUsed", "skip_params", "Context.skip", "skipped",
                "Context.isSkipped", "register_param", "Context.register", "register_slices",
                "ParameterBuilder.registerSlices", "set_comm_hook", "Context.setHook",
                "hook_state_save", "Context.hookState", "hook_state_load", "Context.loadHookState",
                "set_reduced_callback", "Context.setReducedFunction", "context_bucket_count",
                "Context.bucketCount", "context_param_bucket", "Context.parameterBucket",
                "stats_bucket_sizes", "Context.bucketSizes", "stats_ready_order",
                "Context.readyOrder", "stats_get", "Context.stats", "plan_save", "Context.plan",
                "plan_adopt", "Context.adoptPlan", "layout_hold", "Parameter.view", "set_workload",
                "Mark.workload", "set_blame_signal", "Mark.blameSignal", "mark_begin", "Mark",
                "mark_end", "Mark.close", "backend_register", "Ddp.registerBackend", "device_count",
                "Device.count", "group_status", "Group.check", "mem_alloc", "Group.alloc",
                "mem_free", "Memory", "averager_get_step", "Averager.steps", "averager_set_step",
                "Averager.steps", "averager_state_save", "Averager.state", "averager_state_load",
                "Averager.loadState", "bucket_count", "Bucket.buffer", "bucket_param_count",
                "Bucket.gradients", "bucket_gradient", "Bucket.gradients", "bucket_parameter",
                "Bucket.gradients", "store_wait", "Store.await", "store_list_keys", "Store.keys",
                "work_test", "Work.isDone", "work_wait", "Work.await", "shard_range", "Shard.of",
                "set_interrupt_check", "Thread.interrupt", "error_create", "the exception",
                "outer_options_init_sized", "Averager.setOuter", "wait_value", "Context.awaitValue",
                "piece_get", "Context.pieces", "piece_count", "Context.pieces", "optimizer_create",
                "Optimizer", "optimizer_free", "Optimizer.close", "optimizer_set", "Optimizer.set",
                "optimizer_step", "Optimizer.step", "optimizer_in_step", "Optimizer.inStep",
                "optimizer_state_count", "Optimizer.state", "optimizer_state_get",
                "Optimizer.state", "shard_array", "ShardArray", "shard_save", "Context.saveShards",
                "shard_load", "Context.loadShards"};
        for (int i = 0; i < pairs.length; i += 2) made.put("ddp_" + pairs[i], pairs[i + 1]);
        return Map.copyOf(made);
    }
}
