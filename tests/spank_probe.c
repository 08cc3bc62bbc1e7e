/*
 * A SPANK plugin that shows what Slurm does with hooks: it notes every call, with the user it runs as, in the file
 * DIR/calls, and fails in the hook that DIR/fail names ("HOOK CONTEXT RC"). DIR is its first argument in plugstack.conf.
 * `required` there, since Slurm ignores failures of an optional plugin.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <slurm/spank.h>

const char plugin_name[] = "probe";
const char plugin_type[] = "spank";
/* Given by the build: the headers may be those of another release. */
const unsigned int plugin_version = SLURM_RELEASE;

static const char *contexts[] = { "error", "local", "remote", "allocator", "slurmd", "job_script" };

static int note(const char *hook, spank_t sp, int ac, char **av)
{
	const char *context = contexts[spank_context()];
	char path[4096], fail_hook[64] = "", fail_context[64] = "";
	uint32_t job = 0, step = 0;
	int rc = 0;
	FILE *f;

	if (ac < 1)
		return 0;
	spank_get_item(sp, S_JOB_ID, &job);
	spank_get_item(sp, S_JOB_STEPID, &step);
	snprintf(path, sizeof(path), "%s/calls", av[0]);
	if ((f = fopen(path, "a"))) {
		fprintf(f, "%s %s uid=%d euid=%d job=%u step=%#x\n", hook, context, getuid(), geteuid(), job, step);
		fclose(f);
	}
	snprintf(path, sizeof(path), "%s/fail", av[0]);
	if ((f = fopen(path, "r"))) {
		if (fscanf(f, "%63s %63s %d", fail_hook, fail_context, &rc) != 3 || strcmp(hook, fail_hook) ||
		    strcmp(context, fail_context))
			rc = 0;
		fclose(f);
	}
	return rc;
}

#define HOOK(name) \
	int slurm_spank_##name(spank_t sp, int ac, char **av) { return note(#name, sp, ac, av); }

HOOK(init)
HOOK(init_post_opt)
HOOK(user_init)
HOOK(task_init_privileged)
HOOK(task_init)
HOOK(task_post_fork)
HOOK(task_exit)
HOOK(exit)
