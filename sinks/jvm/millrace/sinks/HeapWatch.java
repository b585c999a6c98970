package millrace.sinks;

import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;
import java.lang.management.MemoryPoolMXBean;
import java.lang.management.MemoryType;
import java.lang.management.MemoryUsage;
import java.util.ArrayDeque;
import java.util.Deque;

/**
 * A JVM that only collects garbage → its end, with Millrace's exit code for that.
 *
 * <p>Such a JVM may never throw an OutOfMemoryError: each collection frees a little.
 */
public final class HeapWatch {
  /** ExitCode.MEMORY, which spark-submit returns unchanged. */
  private static final int OUT_OF_MEMORY = 38;

  private static final long LOOK_MS = 1_000;

  /** Part of the heap in use after a collection from which the heap counts as nearly full. */
  private static final int FULL_PERCENT = 90;

  private static boolean begun;

  private HeapWatch() {}

  /**
   * End this JVM once pauses took more than {@code percent} of the last {@code seconds}.
   *
   * <p>A single long collection is no reason, such as one of a large heap on a busy machine. There
   * must be several, and the heap must be nearly full after the last one.
   */
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
      long[] look = {now, 0, 0};
      collected(look);
      looks.addLast(look);
      // Keep one look that is as old as the window.
      while (looks.size() > 2 && now - secondOf(looks) >= windowMs) {
        looks.removeFirst();
      }
      long[] first = looks.getFirst();
      long took = now - first[0];
      boolean isMostlyPaused = took >= windowMs && (look[1] - first[1]) * 100 > took * percent;
      if (isMostlyPaused && look[2] - first[2] > 1 && isNearlyFull()) {
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

  /**
   * Add the pauses and the collections until now.
   *
   * <p>Work that collectors do concurrently isn't counted: its names have Concurrent or Cycles.
   */
  private static void collected(long[] look) {
    for (GarbageCollectorMXBean collector : ManagementFactory.getGarbageCollectorMXBeans()) {
      String name = collector.getName();
      if (!name.contains("Concurrent") && !name.contains("Cycles")) {
        look[1] += Math.max(0, collector.getCollectionTime());
        look[2] += Math.max(0, collector.getCollectionCount());
      }
    }
  }

  /** Whether the last collection of the old generation left little room. */
  private static boolean isNearlyFull() {
    for (MemoryPoolMXBean pool : ManagementFactory.getMemoryPoolMXBeans()) {
      MemoryUsage left = pool.getType() == MemoryType.HEAP ? pool.getCollectionUsage() : null;
      String name = pool.getName();
      boolean livesLong = name.contains("Old") || name.contains("Tenured");
      if (left == null || !livesLong) {
        continue;
      }
      long room = left.getMax() < 0 ? left.getCommitted() : left.getMax();
      if (left.getUsed() * 100 > room * FULL_PERCENT) {
        return true;
      }
    }
    return false;
  }
}
