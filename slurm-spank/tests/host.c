/*
 * A process that looks like Slurm to a SPANK plugin: exports spank_* and slurm_*, loads the plugin given as its
 * first argument and drives its hooks as told on stdin, one command a line:
 *
 *   context local|remote|allocator|slurmd     what spank_context() answers
 *   args [ARG]...                             arguments of the plugstack line
 *   item job|step|ntasks NUMBER               what spank_get_item() answers
 *   env NAME LENGTH|VALUE                     one variable of the job ("=LENGTH": that many letters)
 *   user UID                                  task_init drops to this user and group
 *   load                                      dlopen once more (the first load is done at start)
 *   init                                      slurm_spank_init of every load
 *   option NAME REMOTE [VALUE]                callback of that option
 *   user_init                                 of every load
 *   task_init ID                              in a forked child, as slurmstepd does
 *   task_init_here ID                         in this process
 *   task_exit ID                              of every load
 *   repeat TIMES                              the hooks of that many steps, in a child each task, their output dropped
 *   measure                                   threads, open files and resident KiB, against the last measure
 *
 * Everything that happens is printed on stdout. Compile with -DNO_SPANK_LOG for a host without slurm_spank_log,
 * with -DBARE for one without any symbol.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <slurm/spank.h>

static int context = S_CTX_LOCAL;
static uint32_t job = 123, step = 0, ntasks = 1;
static int task = -1;
static char env_name[256], env_value[32768];
static int argc_plugin;
static char *argv_plugin[16];
static void *loads[4];
static int nloads;
static struct spank_option options[8];
static int noptions;
static int in_init;

#ifndef BARE
spank_context_t spank_context(void)
{
	return context;
}

spank_err_t spank_option_register(spank_t sp, struct spank_option *opt)
{
	if (!in_init)
		return ESPANK_BAD_ARG;
	printf("registered %s%s%s\n", opt->name, opt->has_arg ? "=" : "", opt->has_arg ? opt->arginfo : "");
	if (noptions < 8)
		options[noptions++] = *opt;
	return ESPANK_SUCCESS;
}

spank_err_t spank_get_item(spank_t sp, spank_item_t item, ...)
{
	va_list ap;
	spank_err_t rc = ESPANK_SUCCESS;

	va_start(ap, item);
	switch (item) {
	case S_JOB_ID:
		*va_arg(ap, uint32_t *) = job;
		break;
	case S_JOB_STEPID:
		*va_arg(ap, uint32_t *) = step;
		break;
	case S_JOB_LOCAL_TASK_COUNT:
		*va_arg(ap, uint32_t *) = ntasks;
		break;
	case S_TASK_ID:
		if (task < 0)
			rc = ESPANK_NOT_TASK;
		else
			*va_arg(ap, int *) = task;
		break;
	default:
		rc = ESPANK_BAD_ARG;
	}
	va_end(ap);
	return rc;
}

spank_err_t spank_getenv(spank_t sp, const char *var, char *buf, int len)
{
	if (context != S_CTX_REMOTE)
		return ESPANK_NOT_REMOTE;
	if (strcmp(var, env_name))
		return ESPANK_ENV_NOEXIST;
	if (snprintf(buf, len, "%s", env_value) >= len)
		return ESPANK_NOSPACE;
	return ESPANK_SUCCESS;
}

void slurm_error(const char *format, ...)
{
	va_list ap;

	printf("error: ");
	va_start(ap, format);
	vprintf(format, ap);
	va_end(ap);
	printf("\n");
}

#ifndef NO_SPANK_LOG
void slurm_spank_log(const char *format, ...)
{
	va_list ap;

	printf("user: ");
	va_start(ap, format);
	vprintf(format, ap);
	va_end(ap);
	printf("\n");
}
#endif
#endif

static void load(const char *path)
{
	void *handle = dlopen(path, RTLD_LAZY);

	if (!handle) {
		printf("dlopen: %s\n", dlerror());
		exit(3);
	}
	loads[nloads++] = handle;
	printf("loaded %s %s %#x\n", (char *) dlsym(handle, "plugin_name"), (char *) dlsym(handle, "plugin_type"),
	       *(unsigned int *) dlsym(handle, "plugin_version"));
}

static void hook(const char *name)
{
	char symbol[64];
	int i;

	snprintf(symbol, sizeof(symbol), "slurm_spank_%s", name);
	for (i = 0; i < nloads; i++) {
		int (*f)(spank_t, int, char **) = (int (*)(spank_t, int, char **)) dlsym(loads[i], symbol);

		printf("%s %d\n", name, f((spank_t) &task, argc_plugin, argv_plugin));
	}
}

static void task_in_child(const char *id, int user)
{
	int status;

	if (!fork()) {
		task = atoi(id);
		if (user >= 0 && (setgid(user) || setuid(user)))
			printf("cannot become user %d\n", user);
		hook("task_init");
		_exit(0);
	}
	wait(&status);
	if (!WIFEXITED(status))
		printf("task was killed by signal %d\n", WTERMSIG(status));
	else if (WEXITSTATUS(status))
		printf("task ended with status %d\n", WEXITSTATUS(status));
}

/* A number of /proc/self/status. */
static long status_of(const char *key)
{
	char line[256];
	long n = -1;
	FILE *f = fopen("/proc/self/status", "r");

	while (fgets(line, sizeof(line), f))
		if (!strncmp(line, key, strlen(key)))
			n = strtol(line + strlen(key) + 1, NULL, 10);
	fclose(f);
	return n;
}

static void measure(void)
{
	static long before;
	long rss = status_of("VmRSS");
	int files = 0, fd;

	for (fd = 0; fd < 256; fd++)
		files += fcntl(fd, F_GETFD) >= 0;
	printf("threads %ld files %d grown %ld KiB\n", status_of("Threads"), files, before ? rss - before : 0);
	before = rss;
}

static void repeat(int times)
{
	int i, out = dup(1), null = open("/dev/null", O_WRONLY);

	fflush(stdout);
	dup2(null, 1);
	for (i = 0; i < times; i++) {
		in_init = 1;
		hook("init");
		in_init = 0;
		hook("user_init");
		task_in_child("0", -1);
		/* The plugin tells two copies in one stack by equal ids in a row. */
		task = i;
		ntasks = i + 1;
		hook("task_exit");
		task = -1;
	}
	fflush(stdout);
	dup2(out, 1);
	close(out);
	close(null);
}

int main(int argc, char **argv)
{
	char *line = NULL;
	size_t size = 0;
	int user = -1;

	/* The plugin may end a task's process without stdio's flush. */
	setvbuf(stdout, NULL, _IOLBF, 0);
	load(argv[1]);
	while (getline(&line, &size, stdin) > 0) {
		char *word = strtok(line, " \n"), *a, *b;

		if (!word)
			continue;
		if (!strcmp(word, "args")) {
			for (argc_plugin = 0; (a = strtok(NULL, " \n"));)
				argv_plugin[argc_plugin++] = strdup(a);
			continue;
		}
		a = strtok(NULL, " \n");
		b = strtok(NULL, "\n");
		if (!strcmp(word, "context")) {
			context = !strcmp(a, "local") ? S_CTX_LOCAL : !strcmp(a, "remote") ? S_CTX_REMOTE :
				  !strcmp(a, "allocator") ? S_CTX_ALLOCATOR : S_CTX_SLURMD;
		} else if (!strcmp(word, "item")) {
			*(!strcmp(a, "job") ? &job : !strcmp(a, "step") ? &step : &ntasks) = strtoul(b, NULL, 0);
		} else if (!strcmp(word, "env")) {
			snprintf(env_name, sizeof(env_name), "%s", a);
			if (*b == '=') {
				memset(env_value, 'n', atoi(b + 1));
				env_value[atoi(b + 1)] = 0;
			} else {
				snprintf(env_value, sizeof(env_value), "%s", b);
			}
		} else if (!strcmp(word, "user")) {
			user = atoi(a);
		} else if (!strcmp(word, "load")) {
			load(argv[1]);
		} else if (!strcmp(word, "init")) {
			in_init = 1;
			hook("init");
			in_init = 0;
		} else if (!strcmp(word, "user_init")) {
			hook("user_init");
		} else if (!strcmp(word, "option")) {
			char *remote = b ? strtok(b, " ") : "0", *value = strtok(NULL, "");
			int i;

			for (i = 0; i < noptions; i++)
				if (!strcmp(options[i].name, a))
					printf("option %d\n", options[i].cb(options[i].val, value, atoi(remote)));
		} else if (!strcmp(word, "task_init")) {
			task_in_child(a, user);
		} else if (!strcmp(word, "task_init_here")) {
			task = atoi(a);
			hook("task_init");
			task = -1;
		} else if (!strcmp(word, "task_exit")) {
			task = atoi(a);
			hook("task_exit");
			task = -1;
		} else if (!strcmp(word, "repeat")) {
			repeat(atoi(a));
		} else if (!strcmp(word, "measure")) {
			measure();
		} else {
			printf("unknown command %s\n", word);
		}
	}
	return 0;
}
