package millrace.sinks;

import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.classic.Dataset;

/** Rows of one text, in the form that Python's workers read. */
public final class Texts {
  private Texts() {}

  /**
   * Return each row's first column, a text, in UTF-8.
   *
   * <p>The rows' own query runs, so its observed metrics are available afterwards.
   */
  public static JavaRDD<byte[]> of(Dataset<Row> rows) {
    return rows.queryExecution().toRdd().toJavaRDD().map(row -> row.getUTF8String(0).getBytes());
  }
}
