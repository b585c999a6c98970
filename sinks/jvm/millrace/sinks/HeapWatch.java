package millrace.sinks;

import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;
import java.util.ArrayDeque;
import java.util.Deque;

/**
 * A JVM that does little but collect garbage → its end, with Millrace's exit code for that.
 *
 * <p>Such a JVM may never throw an OutOfMemoryError: each collection frees a little.
 */
public final class HeapWatch {
  /** ExitCode.MEMORY: under spark-submit it is the command's own. */
  private static final int OUT_OF_MEMORY = 36;

  private static final long LOOK_MS = 1_000;

  private static boolean begun;

  private HeapWatch() {}

  /** End this JVM once more than {@code percent} of the last {@code seconds} went into pauses. */
  public static synchronized void begin(int seconds, int percent) {
    if (begun) {
      return;
    }
    begun = true;
    Thread thread = new Thread(() -> watch(seconds * 1_000L, percent), "millrace heap watch");
    thread.setDaemon(true);
    thread.setPriority(Thread.MAX_PRIORITY);
    thread.start();
  }

  private static void watch(long windowMs, int percent) {
    Deque<long[]> looks = new ArrayDeque<>();
    while (true) {
      long now = System.nanoTime() / 1_000_000;
      long paused = pausedMs();
      looks.addLast(new long[] {now, paused});
      // The first one stays that is as old as the window.
      while (looks.size() > 2 && now - secondOf(looks) >= windowMs) {
        looks.removeFirst();
      }
      long[] first = looks.getFirst();
      long took = now - first[0];
      if (took >= windowMs && (paused - first[1]) * 100 > took * percent) {
        Runtime.getRuntime().halt(OUT_OF_MEMORY); // shutdown hooks would need memory
      }
      try {
        Thread.sleep(LOOK_MS);
      } catch (InterruptedException interrupted) {
        return;
      }
    }
  }

  private static long secondOf(Deque<long[]> looks) {
    long[] first = looks.removeFirst();
    long second = looks.getFirst()[0];
    looks.addFirst(first);
    return second;
  }

  /** What collectors work beside the program isn't counted: they are named Concurrent or Cycles. */
  private static long pausedMs() {
    long sum = 0;
    for (GarbageCollectorMXBean collector : ManagementFactory.getGarbageCollectorMXBeans()) {
      String name = collector.getName();
      if (!name.contains("Concurrent") && !name.contains("Cycles")) {
        sum += Math.max(0, collector.getCollectionTime());
      }
    }
    return sum;
  }
}
