/* Holds a pod's namespaces: waits until it is told to end, and reaps the processes left to it. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal) { (void)signal; _exit(0); }
static void reap(int signal) { (void)signal; while (waitpid(-1, 0, WNOHANG) > 0) {} }

int main(void) {
	signal(SIGINT, end);
	signal(SIGTERM, end);
	signal(SIGCHLD, reap);
	for (;;) pause();
}
