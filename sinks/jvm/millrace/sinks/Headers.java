package millrace.sinks;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/** A record's headers → the values of Millrace's own; null for a missing one. */
public final class Headers {
  /** A row's headers: docs/decisions/0001-positions.md, 0007 (filled), and the claim check's. */
  static final StructType TYPE =
      new StructType()
          .add("position", DataTypes.StringType)
          .add("commit_lsn", DataTypes.LongType)
          .add("schema_version", DataTypes.IntegerType)
          .add("filled", DataTypes.StringType)
          .add("claim", DataTypes.StringType);

  private static final UTF8String POSITION = UTF8String.fromString("millrace.position");
  private static final UTF8String CLAIM = UTF8String.fromString("millrace.claim");
  private static final UTF8String SLASH = UTF8String.fromString("/");

  /** Digits of epoch, commit LSN and index, with dots between them. */
  private static final int EPOCH = 8;

  private static final int LSN = 16;
  private static final int LENGTH = EPOCH + 1 + LSN + 1 + LSN;

  private Headers() {}

  /** Return the values; Spark never calls it with null. */
  public static InternalRow read(ArrayData headers) {
    Object[] values = new Object[TYPE.length()];
    for (int at = headers.numElements() - 1; at >= 0; at--) {
      InternalRow header = headers.getStruct(at, 2);
      UTF8String name = header.getUTF8String(0);
      if (header.isNullAt(1)) {
        continue;
      }
      if (POSITION.equals(name)) {
        place(UTF8String.fromBytes(header.getBinary(1)), values);
      } else if (CLAIM.equals(name)) {
        values[4] = UTF8String.fromBytes(header.getBinary(1));
      }
    }
    return new GenericInternalRow(values);
  }

  private static void place(UTF8String text, Object[] values) {
    UTF8String[] fields = text.split(SLASH, -1);
    if (isPosition(fields[0])) {
      values[0] = fields[0];
      long lsn = Long.parseUnsignedLong(fields[0].toString(), EPOCH + 1, EPOCH + 1 + LSN, 16);
      values[1] = lsn < 0 ? null : lsn;
    }
    if (fields.length > 1) {
      UTF8String.IntWrapper version = new UTF8String.IntWrapper();
      values[2] = fields[1].toInt(version) ? version.value : null;
    }
    if (fields.length > 2) {
      values[3] = fields[2];
    }
  }

  private static boolean isPosition(UTF8String text) {
    if (text.numBytes() != LENGTH) {
      return false;
    }
    for (int at = 0; at < LENGTH; at++) {
      byte one = text.getByte(at);
      boolean dot = at == EPOCH || at == EPOCH + 1 + LSN;
      boolean digit = (one >= '0' && one <= '9') || (one >= 'a' && one <= 'f');
      if (dot ? one != '.' : !digit) {
        return false;
      }
    }
    return true;
  }
}
