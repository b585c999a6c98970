package millrace.sinks;

import java.time.DateTimeException;
import java.time.LocalDate;
import java.time.ZoneOffset;
import org.apache.spark.sql.catalyst.util.DateTimeUtils;
import org.apache.spark.unsafe.types.UTF8String;
import scala.Option;

/** A timestamp's text → µs since 1970, as Spark's cast in UTC, but fast for a text in UTC. */
public final class Timestamps {
  private static final int WHOLE = "2024-01-31T12:34:56".length();
  private static final int FRACTION_MAX = 6;
  private static final long SECOND = 1_000_000;

  private Timestamps() {}

  /** Return null if Spark's cast does; Spark never calls it with null. */
  public static Long micros(UTF8String text) {
    Long quick = inUtc(text);
    if (quick != null) {
      return quick;
    }
    Option<Object> found = DateTimeUtils.stringToTimestamp(text, ZoneOffset.UTC);
    return found.isDefined() ? (Long) found.get() : null;
  }

  /** Parse ISO 8601 with a year of four digits and a Z; null: another form. */
  private static Long inUtc(UTF8String text) {
    int end = text.numBytes() - 1;
    if (end < WHOLE || text.getByte(end) != 'Z') {
      return null;
    }
    int year = number(text, 0, 4, (byte) '-');
    int month = number(text, 5, 2, (byte) '-');
    int day = number(text, 8, 2, (byte) 'T');
    int hour = number(text, 11, 2, (byte) ':');
    int minute = number(text, 14, 2, (byte) ':');
    int second = number(text, 17, 2, (byte) (end == WHOLE ? 'Z' : '.'));
    int digits = Math.max(0, end - WHOLE - 1);
    int fraction = digits == 0 ? 0 : number(text, WHOLE + 1, digits, (byte) 'Z');
    boolean timely = hour >= 0 && hour < 24 && minute >= 0 && minute < 60 && second >= 0;
    if (!timely || second > 59 || digits > FRACTION_MAX || fraction < 0 || year < 1) {
      return null;
    }
    for (int at = digits; at < FRACTION_MAX; at++) {
      fraction *= 10;
    }
    try {
      long days = LocalDate.of(year, month, day).toEpochDay();
      return (((days * 24 + hour) * 60 + minute) * 60 + second) * SECOND + fraction;
    } catch (DateTimeException error) {
      return null;
    }
  }

  /** Return the digits from a place if this byte follows them; else -1. */
  private static int number(UTF8String text, int from, int digits, byte follows) {
    int found = 0;
    for (int at = from; at < from + digits; at++) {
      int digit = text.getByte(at) - '0';
      if (digit < 0 || digit > 9) {
        return -1;
      }
      found = found * 10 + digit;
    }
    return text.getByte(from + digits) == follows ? found : -1;
  }
}
