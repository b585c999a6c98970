package millrace.sinks;

import java.util.List;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.objects.Invoke;
import org.apache.spark.sql.catalyst.expressions.objects.StaticInvoke;
import org.apache.spark.sql.classic.ExpressionUtils;
import org.apache.spark.sql.types.AbstractDataType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** Expressions that call the methods of this package. */
public final class Expressions {
  private Expressions() {}

  /** Call {@link JsonReader#read} with a text; {@code schema} is the rows' schema as DDL. */
  public static Column json(Column text, String schema) {
    StructType rows = StructType.fromDDL(schema);
    Expression reader = Literal.fromObject(new JsonReader(rows));
    Expression call =
        new Invoke(reader, "read", rows, only(text), none(), true, true, true);
    return ExpressionUtils.column(call);
  }

  /** {@link Headers#read} of an array of structs of key and value. */
  public static Column headers(Column headers) {
    return call(Headers.class, "read", Headers.TYPE, headers);
  }

  /** {@link Timestamps#micros} of a text. */
  public static Column timestamp(Column text) {
    return call(Timestamps.class, "micros", DataTypes.TimestampType, text);
  }

  private static Column call(Class<?> of, String method, DataType type, Column argument) {
    return ExpressionUtils.column(
        new StaticInvoke(
            of, type, method, only(argument), none(), true, true, true, Option.empty()));
  }

  private static Seq<Expression> only(Column column) {
    return CollectionConverters.asScala(List.of(ExpressionUtils.expression(column))).toSeq();
  }

  private static Seq<AbstractDataType> none() {
    return CollectionConverters.asScala(List.<AbstractDataType>of()).toSeq();
  }
}
